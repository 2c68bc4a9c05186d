#include "plan/roles.hpp"

#include <algorithm>

namespace ubep {

Roles split_lanes(int lanes, const RoleLoad& load, const LaneRates& rates) {
  if (lanes <= 1) return {.count = 1};
  const auto bytes = static_cast<double>(load.row_bytes);
  const double count = static_cast<double>(load.peers) * rates.count_ns;
  const double send = static_cast<double>(load.sent) * (rates.issue_ns + bytes * rates.send_ns);
  const double receive = static_cast<double>(load.received) * bytes * rates.receive_ns;
  Roles best;
  double best_time = -1;
  for (int c = 1; c < lanes; ++c) {
    const int most = receive > 0 ? lanes - c - 1 : 0;
    for (int r = receive > 0 && lanes > 2 ? 1 : 0; r <= most; ++r) {
      const int s = lanes - c - r;
      const double rows = r == 0 ? (send + receive) / s : std::max(send / s, receive / r);
      const double time = std::max(count / c, rows);
      if (best_time >= 0 && time >= best_time) continue;
      best_time = time;
      best = {.count = c, .send = s, .receive = r};
    }
  }
  return best;
}

}  // namespace ubep
