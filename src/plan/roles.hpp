// How many lanes count, send and receive first (UBEP's kernel decomposition, arXiv 2607.06202):
// counting grows with the ranks that are heard of, sending and receiving with tokens x topk.
#pragma once

#include <cstdint>

#include "base/fabric_facts.hpp"
#include "ubep/trace.hpp"

namespace ubep {

// One rank's share of an operation.
struct RoleLoad {
  std::int64_t peers = 0;     // whose records are read
  std::int64_t sent = 0;      // rows stored for peers
  std::int64_t received = 0;  // rows copied here
  std::uint64_t row_bytes = 0;
};

// The split of `lanes` (at least 1) whose slowest role is the fastest, by `rates`; of equal ones
// that with most senders. One lane has all roles. Of two the second sends and receives.
Roles split_lanes(int lanes, const RoleLoad& load, const LaneRates& rates);

}  // namespace ubep
