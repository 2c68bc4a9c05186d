#include "engine/engine.hpp"

#include "memory/private_rows.hpp"
#include "protocol/segment_layout.hpp"

namespace ubep {

std::uint64_t private_bytes(const GroupConfig& config, int rank) {
  const SegmentLayout layout(config, rank);
  return static_cast<std::uint64_t>(config.slots) *
         (PrivateRows::reserved_bytes(layout.x_area_bytes()) +
          2 * PrivateRows::reserved_bytes(layout.y_area_bytes()));
}

}  // namespace ubep
