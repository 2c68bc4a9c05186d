// Checks of a record, on a private copy: nothing from shared memory is used before it passed.
#pragma once

#include <cstdint>
#include <span>

#include "base/entry.hpp"
#include "base/group_config.hpp"
#include "protocol/op_line.hpp"

namespace ubep {

// What a source's entries for this rank must satisfy.
struct RecordLimits {
  const ExpertMap* experts = nullptr;
  int rank = 0;  // the owner, i.e. the reader
  std::uint32_t tokens = 0;
  std::uint32_t topk = 0;
  Layout layout = Layout::rank_major;
};

// Entries sorted as the layout says, each token, k and expert in range, each expert local to
// `rank`. Returns a field of nullptr when all is well.
OpDifference find_corruption(std::span<const Entry> entries, const RecordLimits& limits);

}  // namespace ubep
