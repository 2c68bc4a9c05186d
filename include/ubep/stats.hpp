// What a communicator costs and what it found out about the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ubep/trace.hpp"
#include "ubep/types.hpp"

namespace ubep {

// Bytes of one rank. `shared_bytes` is the size of its segment and inbox and `private_bytes` of its
// private row areas: both are address space, resident only as far as they were used.
struct MemoryPlan {
  std::size_t shared_bytes = 0;
  std::size_t private_bytes = 0;
  // What a balanced routing touches with every slot full: compared with the memory available
  // before anything is allocated.
  std::size_t expected_resident_bytes = 0;

  std::size_t reserved_bytes() const { return shared_bytes + private_bytes; }
};

// One dispatch of this rank, and its combine.
struct OperationStats {
  Path path = Path::automatic;  // what `automatic` became
  Store store = Store::far;     // how its lines that cross between ranks are stored
  const char* reason = "";      // why that path
  Roles roles;                  // of the dispatch's lanes; of one lane all 0
  // Payload bytes that this rank copied: into shared memory, and to the place where the rows are
  // received. Sums are not copies.
  std::uint64_t dispatch_copied_bytes = 0;
  std::uint64_t combine_copied_bytes = 0;
};

struct CommunicatorFacts {
  Placement placement = Placement::unknown;  // of this rank and rank 0, by the latest probe
  double flag_one_way_ns = 0;                // 0 = not measured
  std::uint64_t probes = 0;                  // that gave an answer, set-up included
  Store store = Store::far;                  // what `Store::automatic` became
  const char* store_reason = "";             // why
  // With Bootstrap::address: of each rank a number that those of its host have alike, and the name
  // of that host ("" of a rank that takes no part). Else empty.
  std::vector<int> host_of;
  std::vector<std::string> host_names;
  std::string transport;  // between hosts, with its version; "" where all are on one
  std::uint64_t host_bytes =
      0;  // that this rank has put to ranks of other hosts, or fetched, so far
};

}  // namespace ubep
