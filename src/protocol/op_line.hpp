// The op line: what a rank announces about each operation it starts (docs/protocol.md).
//
// One cache line in the rank's own segment, place seq mod 4N. `seq` is a shared word and is stored
// last; the rest is read after it, copied to private memory and compared with the reader's own.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/group_config.hpp"
#include "ubep/status.hpp"
#include "ubep/types.hpp"

namespace ubep {

struct OpLine {
  std::uint64_t seq = 0;     // operations started by this rank, from 1
  std::uint64_t epoch = 0;   // dispatches started; a combine carries its dispatch's
  std::uint64_t origin = 0;  // epoch of the dispatch whose routing this one repeats; else its own
  std::uint32_t view = 0;    // membership
  std::uint32_t map_version = 0;
  std::uint32_t round = 0;
  std::uint16_t layer = 0;
  std::uint16_t payload_bytes = 0;  // behind each row, with what aligns them
  std::uint32_t hidden = 0;         // of a combine: of the outputs
  std::uint32_t tokens = 0;         // may differ between ranks, at most max_tokens
  OpKind kind = OpKind::none;
  DType dtype = DType::bf16;
  Layout layout = Layout::rank_major;
  Reduction reduction = Reduction::automatic;
  std::uint8_t topk = 0;
  std::uint8_t topk1 = 0;
  // A rank's own affair, which its peers go by.
  Path path = Path::pull;  // of its rows: push = into inboxes; bsp, allgather, relay must agree
  std::uint8_t relay_shift = 0;     // which ranks relay its rows (HostMap::gateway)
  std::uint16_t alignment = 1;      // expert_major
  std::uint8_t marks : 1 = 0;       // 1 = some of my rows are announced by `sent`
  std::uint8_t unweighted : 1 = 0;  // combine: plain sums
  std::uint8_t more : 1 = 0;        // a layer: I have tokens for another round
  std::uint8_t by_expert : 1 = 0;   // combine: I announce outputs expert by expert (my own affair)
  std::uint8_t contiguous : 1 = 0;
  std::uint8_t lacks : 1 = 0;  // relay, combine: some sources' rows did not come: see `lacking`
  std::uint8_t spare : 2 = 0;
  Quant quant = Quant::none;
  std::uint32_t capacity = 0;  // expert_padded
};
static_assert(sizeof(OpLine) == 64, "one cache line");

// Compares what ranks must agree on. Returns nullptr, or the name of the first field that differs
// with both values.
struct OpDifference {
  const char* field = nullptr;
  std::uint64_t mine = 0;
  std::uint64_t theirs = 0;
};
OpDifference compare(const OpLine& mine, const OpLine& theirs);

// Then compare() finds nothing, nor does find_corruption() when `mine` is right, but for `tokens`.
inline bool same_but_tokens(const OpLine& mine, OpLine theirs) {
  theirs.tokens = mine.tokens;
  return std::memcmp(&mine, &theirs, sizeof(OpLine)) == 0;
}

// An op line that no correct rank writes (unknown enum, more than was declared): the field, or
// nullptr.
OpDifference find_corruption(const OpLine& theirs, const GroupConfig& config);

}  // namespace ubep
