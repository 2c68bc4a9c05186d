#include "sim/pod.hpp"

#include <fmt/format.h>

#include "base/group_config.hpp"
#include "sim/json_reader.hpp"

namespace ubep::sim {
namespace {

constexpr std::int64_t kMostWindow = 1'000'000'000'000;

LaneCosts read_lane(JsonReader reader) {
  LaneCosts costs;
  costs.issue = reader.time("issue_ns");
  costs.poll = reader.time("poll_ns");
  costs.fence = reader.time("fence_ns");
  if (reader.optional("barrier_ns")) costs.barrier = reader.time("barrier_ns");
  costs.put = reader.rate("put_gb_s");
  costs.copy = reader.rate("copy_gb_s");
  costs.reduce = reader.rate("reduce_gb_s");
  costs.plan = reader.rate("plan_gb_s");
  if (reader.optional("window_bytes")) {
    costs.window = static_cast<std::uint64_t>(reader.integer("window_bytes", 0, kMostWindow));
  }
  reader.finish("a pod");
  return costs;
}

Tier read_tier(JsonReader reader) {
  Tier tier;
  tier.name = reader.text("name");
  tier.ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  tier.latency = reader.time("latency_ns");
  tier.uplink = reader.optional_rate("uplink_gb_s");
  reader.finish("a pod");
  return tier;
}

void read_tiers(JsonReader& reader, Pod& pod) {
  const Json& tiers = reader.need("tiers");
  if (!tiers.is_array() || tiers.empty()) reader.fail("tiers", "expected a list of tiers");
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    JsonReader inner = reader.inner("tiers", i);
    pod.tiers.push_back(read_tier(inner));
    if (i == 0) {
      if (pod.tiers[0].uplink != 0) inner.fail("uplink_gb_s", "of the first tier has no meaning");
      continue;
    }
    const int below = pod.tiers[i - 1].ranks;
    if (pod.tiers[i].ranks > below && pod.tiers[i].ranks % below == 0) continue;
    inner.fail("ranks", fmt::format("is {}, expected a multiple of {}, the tier before",
                                    pod.tiers[i].ranks, below));
  }
  if (pod.tiers.back().ranks != pod.ranks) {
    reader.fail("tiers", fmt::format("end with {} ranks, the pod has {}", pod.tiers.back().ranks,
                                     pod.ranks));
  }
}

}  // namespace

Time time_of(std::uint64_t bytes, std::uint64_t rate) {
  if (rate == 0) return 0;
  constexpr std::uint64_t kPicosecondsPerSecond = 1'000'000'000'000;
  __extension__ using Wide = unsigned __int128;
  const auto exact = static_cast<Wide>(bytes) * kPicosecondsPerSecond;
  return static_cast<Time>((exact + rate - 1) / rate);
}

const Tier& Pod::tier(int a, int b) const {
  for (const Tier& tier : tiers) {
    if (a / tier.ranks == b / tier.ranks) return tier;
  }
  return tiers.back();
}

Pod read_pod(const std::string& path) {
  const JsonFile file = read_json(path);
  JsonReader reader(file);
  Pod pod;
  pod.name = reader.text("name");
  pod.ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  pod.lanes = static_cast<int>(reader.integer("lanes", 1, 64));
  pod.port = reader.rate("port_gb_s");
  pod.memory = reader.rate("memory_gb_s");
  pod.block = static_cast<std::uint32_t>(reader.integer("block_bytes", 16, 1 << 20));
  pod.jitter = reader.time("jitter_ns");
  read_tiers(reader, pod);
  pod.lane = read_lane(reader.inner("lane"));
  reader.finish("a pod");
  return pod;
}

std::vector<PodVariant> read_pod_variants(const std::string& path) {
  std::vector<PodVariant> variants;
  variants.push_back({.name = "base", .weight = 1, .pod = read_pod(path)});
  return variants;
}

}  // namespace ubep::sim
