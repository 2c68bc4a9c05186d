// Plain facts that a fabric states and the engine asks for.
#pragma once

#include <cstdint>
#include <vector>

#include "base/host_map.hpp"
#include "ubep/types.hpp"

namespace ubep {

// Bytes [offset, offset + bytes) of a rank's segment.
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Every fabric keeps the first bytes of a segment for itself; the protocol's words follow.
inline constexpr std::uint64_t kFabricHeaderBytes = 512;

enum class PeerState : std::uint8_t { joining, live, left, failed, dead };

// The orderings that a fabric supplies by name.
enum class Ordering : std::uint8_t {
  before_flag,  // my data stores, non-temporal ones included, before my next flag
};

// Work of the engine on its own memory; costs nothing on a real fabric.
struct Work {
  enum class Kind : std::uint8_t { barrier, plan, copy, reduce, verify };  // verify: reads only
  Kind kind = Kind::copy;
  std::uint64_t bytes = 0;
};

// Rough costs of one lane, for the split of lanes by role: only their ratios matter. A pod's come
// from its file; these are guesses for a CPU, not measured.
struct LaneRates {
  double count_ns = 300;     // a peer's op line and record
  double issue_ns = 10;      // a row stored for a peer, whatever its size
  double send_ns = 0.1;      // and each of its bytes
  double receive_ns = 0.05;  // each byte copied here
};

struct FabricFacts {
  bool mapped = false;             // acquire() is an address computation
  HostMap hosts;                   // where that is so only among ranks of one host; else empty
  bool moves_rows = true;          // false: rows have addresses, but nothing lies there
  std::uint32_t atomic_bytes = 8;  // aligned stores of this size are never torn
  bool ordered_stores = false;     // a release store becomes visible after all stores before it
  Placement placement = Placement::unknown;
  double flag_one_way_ns = 0;  // 0 = not measured
  LaneRates lane;
  std::vector<std::uint16_t> tiers;  // [R] how far each rank is, 0 nearest; empty = all alike
};

}  // namespace ubep
