#include "tools/ubep/sim/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ubep::tools {
namespace {

// `field(pod)` is a reference to a number.
template <class Field>
void add(std::vector<PodParameter>& all, const sim::Pod& pod, std::string name, Field field) {
  sim::Pod copy = pod;
  if (field(copy) == 0) return;
  all.push_back({std::move(name), [field](sim::Pod& p, double factor) {
                   auto& value = field(p);
                   using Value = std::remove_reference_t<decltype(value)>;
                   const double scaled = std::round(static_cast<double>(value) * factor);
                   value = static_cast<Value>(std::max(scaled, 1.0));
                   for (sim::Tier& tier : p.tiers) tier.rate = std::min(tier.rate, p.port);
                 }});
}

// `costs(pod)` is a reference to the lanes' costs whose names begin with `prefix`.
template <class Costs>
void add_lanes(std::vector<PodParameter>& all, const sim::Pod& pod, const char* prefix,
               Costs costs) {
  const auto lane = [&](const char* name, auto sim::LaneCosts::*field) {
    add(all, pod, fmt::format("{}.{}", prefix, name),
        [costs, field](sim::Pod& p) -> auto& { return costs(p).*field; });
  };
  lane("issue_ns", &sim::LaneCosts::issue);
  lane("poll_ns", &sim::LaneCosts::poll);
  lane("fence_ns", &sim::LaneCosts::fence);
  lane("barrier_ns", &sim::LaneCosts::barrier);
  lane("row_ns", &sim::LaneCosts::row);
  lane("combine_row_ns", &sim::LaneCosts::combine_row);
  lane("receive_row_ns", &sim::LaneCosts::receive_row);
  lane("launch_ns", &sim::LaneCosts::launch);
  lane("combine_launch_ns", &sim::LaneCosts::combine_launch);
  lane("put_gb_s", &sim::LaneCosts::put);
  lane("copy_gb_s", &sim::LaneCosts::copy);
  lane("reduce_gb_s", &sim::LaneCosts::reduce);
  lane("plan_gb_s", &sim::LaneCosts::plan);
  lane("read_gb_s", &sim::LaneCosts::read);
  lane("share_gb_s", &sim::LaneCosts::share);
  lane("read_ns", &sim::LaneCosts::read_first);
  lane("window_bytes", &sim::LaneCosts::window);
  lane("in_flight", &sim::LaneCosts::in_flight);
  sim::Pod copy = pod;
  if (!costs(copy).signal) return;
  add(all, pod, fmt::format("{}.signal_ns", prefix),
      [costs](sim::Pod& p) -> auto& { return *costs(p).signal; });
}

}  // namespace

std::vector<PodParameter> parameters_of(const sim::Pod& pod) {
  std::vector<PodParameter> all;
  add(all, pod, "port_gb_s", [](sim::Pod& p) -> auto& { return p.port; });
  add(all, pod, "memory_gb_s", [](sim::Pod& p) -> auto& { return p.memory; });
  add(all, pod, "block_bytes", [](sim::Pod& p) -> auto& { return p.block; });
  add(all, pod, "jitter_ns", [](sim::Pod& p) -> auto& { return p.jitter; });
  for (std::size_t i = 0; i < pod.tiers.size(); ++i) {
    add(all, pod, fmt::format("tiers.{}.latency_ns", i),
        [i](sim::Pod& p) -> auto& { return p.tiers[i].latency; });
    add(all, pod, fmt::format("tiers.{}.uplink_gb_s", i),
        [i](sim::Pod& p) -> auto& { return p.tiers[i].uplink; });
    add(all, pod, fmt::format("tiers.{}.rate_gb_s", i),
        [i](sim::Pod& p) -> auto& { return p.tiers[i].rate; });
  }
  add_lanes(all, pod, "lane", [](sim::Pod& p) -> auto& { return p.lane; });
  if (pod.bsp) add_lanes(all, pod, "bsp", [](sim::Pod& p) -> auto& { return *p.bsp; });
  if (pod.combine) {
    add_lanes(all, pod, "combine", [](sim::Pod& p) -> auto& { return *p.combine; });
    add_lanes(all, pod, "bsp_combine", [](sim::Pod& p) -> auto& { return *p.bsp_combine; });
  }
  return all;
}

}  // namespace ubep::tools
