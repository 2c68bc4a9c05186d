#include "sim/topology.hpp"

#include <fmt/format.h>

#include <vector>

#include "base/group_config.hpp"
#include "sim/json_reader.hpp"
#include "sim/pod.hpp"

namespace ubep::sim {
namespace {

constexpr const char* kKind = "a topology";

Distances of_pod(const Pod& pod) {
  std::vector<int> sizes;
  sizes.reserve(pod.tiers.size());
  for (const Tier& tier : pod.tiers) sizes.push_back(tier.ranks);
  return distances_of_groups(sizes, pod.ranks);
}

Distances of_tiers(JsonReader& reader) {
  const auto ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  const Json& tiers = reader.need("tiers");
  if (!tiers.is_array() || tiers.empty()) reader.fail("tiers", "expected a list of tiers");
  std::vector<int> sizes;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    JsonReader tier = reader.inner("tiers", i);
    if (tier.optional("name")) (void)tier.text("name");
    const auto size = static_cast<int>(tier.integer("ranks", 1, kMostRanks));
    if (i != 0 && (size <= sizes.back() || size % sizes.back() != 0)) {
      tier.fail("ranks", fmt::format("is {}, expected a multiple of {}, the tier before", size,
                                     sizes.back()));
    }
    sizes.push_back(size);
    tier.finish(kKind);
  }
  if (sizes.back() < ranks) {
    reader.fail("tiers", fmt::format("end with {} ranks, expected {}", sizes.back(), ranks));
  }
  reader.finish(kKind);
  return distances_of_groups(sizes, ranks);
}

void read_row(const JsonReader& reader, const Json& rows, std::size_t sender,
              std::vector<double>& ns) {
  const Json& row = rows[sender];
  if (!row.is_array() || row.size() != rows.size()) {
    reader.fail("latency_ns", sender,
                fmt::format("is {}, expected a list of {} numbers",
                            row.is_array() ? fmt::format("a list of {}", row.size()) : row.dump(),
                            rows.size()));
  }
  for (std::size_t to = 0; to < row.size(); ++to) {
    const bool fits = row[to].is_number() &&
                      (to == sender || (row[to].get<double>() > 0 && row[to].get<double>() <= 1e9));
    if (!fits) {
      reader.fail("latency_ns", sender,
                  fmt::format("has {} for rank {}, expected a number above 0, at most 1e9",
                              row[to].dump(), to));
    }
    ns.push_back(row[to].get<double>());
  }
}

Distances of_latencies(JsonReader& reader) {
  LatencyTiers options;
  if (reader.optional("ratio")) options.ratio = reader.number("ratio", 1.05, 1e6);
  const Json& rows = reader.need("latency_ns");
  if (!rows.is_array() || rows.empty() || rows.size() > std::size_t{kMostRanks}) {
    reader.fail("latency_ns", fmt::format("expected a list of 1 to {} rows", kMostRanks));
  }
  options.ranks = static_cast<int>(rows.size());
  std::vector<double> ns;
  for (std::size_t sender = 0; sender < rows.size(); ++sender) read_row(reader, rows, sender, ns);
  reader.finish(kKind);
  return distances_of_latencies(ns, options);
}

}  // namespace

Distances read_topology(const std::string& path) {
  const JsonFile file = read_json(path);
  JsonReader reader(file);
  if (reader.optional("latency_ns")) return of_latencies(reader);
  if (file.json.contains("port_gb_s") || file.json.contains("lane")) return of_pod(read_pod(file));
  return of_tiers(reader);
}

}  // namespace ubep::sim
