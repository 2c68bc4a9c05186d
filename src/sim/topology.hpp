// Distances of ranks from a file (JSON), which is one of
//
//   { "ranks": 16, "tiers": [ { "name": "node", "ranks": 4 }, { "ranks": 16 } ] }
//   { "latency_ns": [ [0, 60, 250], [60, 0, 250], [250, 250, 0] ], "ratio": 1.5 }
//   a pod (sim/pod.hpp), of which the tiers count
//
// `tiers` are groups of consecutive ranks as in a pod, names may be left out; of `latency_ns` a row
// is a sender, and `ratio` may be left out. base/distances.hpp tells what becomes of them.
#pragma once

#include <string>

#include "base/distances.hpp"

namespace ubep::sim {

// Throws ubep::Error(invalid_argument) that names file, line and key.
Distances read_topology(const std::string& path);

}  // namespace ubep::sim
