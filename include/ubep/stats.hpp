// What a communicator costs and what it found out about the machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ubep/types.hpp"

namespace ubep {

// Bytes of one rank. `shared_bytes` is the size of its segment and `private_bytes` of its private
// row areas: both are address space, resident only as far as they were used.
struct MemoryPlan {
  std::size_t shared_bytes = 0;
  std::size_t private_bytes = 0;
  // What a balanced routing touches with every slot full: compared with the memory available
  // before anything is allocated.
  std::size_t expected_resident_bytes = 0;

  std::size_t reserved_bytes() const { return shared_bytes + private_bytes; }
};

struct CommunicatorFacts {
  Placement placement = Placement::unknown;  // of this rank and rank 0, by the probe at set-up
  double flag_one_way_ns = 0;                // 0 = not measured
  Store store = Store::far;                  // what `Store::automatic` became
  const char* store_reason = "";             // why
};

}  // namespace ubep
