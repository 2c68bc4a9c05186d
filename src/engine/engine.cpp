#include "engine/engine.hpp"

#include "base/math.hpp"
#include "protocol/segment_layout.hpp"

namespace ubep {

std::uint64_t private_output_bytes(const GroupConfig& config, int rank) {
  if (config.experts.num_local(rank) == 0) return 0;
  const auto choices = checked_mul(static_cast<std::uint64_t>(config.size),
                                   checked_mul(static_cast<std::uint64_t>(config.max_tokens),
                                               static_cast<std::uint64_t>(config.max_topk)));
  const auto rows = std::max(choices, config.max_rows(rank));
  return round_up(checked_mul(rows, config.max_stride), kPageBytes);
}

std::uint64_t private_bytes(const GroupConfig& config, int rank) {
  const SegmentLayout layout(config, rank);
  return static_cast<std::uint64_t>(config.slots) *
         (layout.x_area_bytes() + layout.y_area_bytes() + private_output_bytes(config, rank));
}

}  // namespace ubep
