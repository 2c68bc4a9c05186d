// Pods for tests of the simulator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "sim/pod.hpp"

namespace ubep::sim {

// pods/generic.json of this tree.
inline std::string generic_pod() {
  const std::filesystem::path here = __FILE__;
  return (here.parent_path() / "../../../pods/generic.json").lexically_normal().string();
}

// One tier, everything at `rate` bytes per second, blocks of 1000 bytes, and lanes that cost
// nothing.
inline Pod flat_pod(int ranks, std::uint64_t rate = 1'000'000'000, Time latency = kMicrosecond) {
  Pod pod;
  pod.name = "flat";
  pod.ranks = ranks;
  pod.tiers = {{"all", ranks, latency, 0}};
  pod.port = pod.memory = rate;
  pod.block = 1000;
  return pod;
}

}  // namespace ubep::sim
