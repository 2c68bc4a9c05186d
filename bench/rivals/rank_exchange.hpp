// Rows once to each rank, by any package's all-to-all: what a careful program does with
// MPI_Alltoallv where tokens go to many experts.
//
// A token's row travels with its routing to each rank that has one of its experts; that rank's sum
// of its experts' weighted outputs comes back. Own rows never travel. Not for: packages of which
// all-to-all is not the best part.
#pragma once

#include <functional>
#include <memory>

#include "bench/rivals/way.hpp"

namespace ubep::rivals {

// Blocks of bytes to and from each rank, back to back in rank order.
using AllToAll =
    std::function<void(std::byte* send, const std::vector<std::size_t>& send_bytes,
                       std::byte* receive, const std::vector<std::size_t>& receive_bytes)>;

std::unique_ptr<Way> make_rank_exchange(const Group& group, const Shape& shape,
                                        AllToAll all_to_all);

// Of an element, as WayInfo::tolerance: sums are added by rank, not by host.
inline double rank_exchange_tolerance(const Group& group) {
  return group.spans_hosts() ? 1.0 / 64 : 0;
}

}  // namespace ubep::rivals
