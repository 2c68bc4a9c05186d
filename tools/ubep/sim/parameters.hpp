// The numbers of a pod, by the names that they have in its file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/pod.hpp"

namespace ubep::tools {

struct PodParameter {
  std::string name;  // "lane.poll_ns", "tiers.1.latency_ns"
  // Multiplies it, rounds to what the simulator counts in, and keeps it positive.
  std::function<void(sim::Pod&, double)> scale;
};

// Those that are not 0, which is "no limit" or "no time": their size cannot be varied.
std::vector<PodParameter> parameters_of(const sim::Pod& pod);

}  // namespace ubep::tools
