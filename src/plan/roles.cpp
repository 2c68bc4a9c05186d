#include "plan/roles.hpp"

#include <algorithm>

namespace ubep {

Roles split_lanes(int lanes, const RoleLoad& load, const LaneRates& rates) {
  if (lanes <= 1) return {.count = 1};
  const auto bytes = static_cast<double>(load.row_bytes);
  const double send = static_cast<double>(load.sent) * (rates.issue_ns + bytes * rates.send_ns);
  const double receive = static_cast<double>(load.received) * bytes * rates.receive_ns;
  Roles best{.count = 1, .send = lanes - 1};
  if (receive <= 0) return best;
  double best_time = -1;
  for (int r = lanes > 2 ? 1 : 0; r < lanes - 1; ++r) {
    const int s = lanes - 1 - r;
    const double time = r == 0 ? (send + receive) / s : std::max(send / s, receive / r);
    if (best_time >= 0 && time >= best_time) continue;
    best_time = time;
    best = {.count = 1, .send = s, .receive = r};
  }
  return best;
}

}  // namespace ubep
