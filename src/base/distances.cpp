#include "base/distances.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/group_config.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

Distances distances_among(int ranks) {
  if (ranks < 1 || ranks > kMostRanks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("distances: ranks is {}, expected 1 to {}", ranks, kMostRanks));
  }
  const auto num = static_cast<std::size_t>(ranks);
  return {.ranks = ranks, .tier = std::vector<std::uint16_t>(num * num)};
}

void check_sizes(std::span<const int> sizes, int ranks) {
  int before = 1;
  for (const int size : sizes) {
    if (size < before || size % before != 0) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("distances: group size is {}, expected a multiple of {}", size, before));
    }
    before = size;
  }
  if (before < ranks) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("distances: the largest group has {} ranks, expected {}", before, ranks));
  }
}

void check_latencies(std::span<const double> ns, const LatencyTiers& options, std::size_t num) {
  if (ns.size() != num * num) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("distances: {} latencies, expected {} x {}", ns.size(), num, num));
  }
  if (!(options.ratio >= 1.05)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("distances: ratio is {}, expected 1.05 or more", options.ratio));
  }
  for (std::size_t i = 0; i < ns.size(); ++i) {
    if (i / num == i % num || (ns[i] > 0 && ns[i] <= 1e9)) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("distances: latency from rank {} to {} is {} ns, expected more than 0 "
                            "and at most 1e9",
                            i / num, i % num, ns[i]));
  }
}

}  // namespace

Distances distances_of_groups(std::span<const int> sizes, int ranks) {
  Distances distances = distances_among(ranks);
  check_sizes(sizes, ranks);
  std::uint16_t* tier = distances.tier.data();
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < ranks; ++b, ++tier) {
      if (a == b) continue;
      while (a / sizes[*tier] != b / sizes[*tier]) ++*tier;
      ++*tier;
      distances.tiers = std::max(distances.tiers, *tier + 1);
    }
  }
  return distances;
}

Distances distances_of_latencies(std::span<const double> ns, const LatencyTiers& options) {
  Distances distances = distances_among(options.ranks);
  const auto num = static_cast<std::size_t>(options.ranks);
  check_latencies(ns, options, num);
  std::vector<double> sorted;
  sorted.reserve(ns.size());
  for (std::size_t i = 0; i < ns.size(); ++i) {
    if (i / num != i % num) sorted.push_back(ns[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> begins;  // the smallest of each tier from 1 on
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || sorted[i] > options.ratio * sorted[i - 1]) begins.push_back(sorted[i]);
  }
  for (std::size_t i = 0; i < ns.size(); ++i) {
    if (i / num == i % num) continue;
    const auto behind = std::upper_bound(begins.begin(), begins.end(), ns[i]);
    distances.tier[i] = static_cast<std::uint16_t>(behind - begins.begin());
  }
  distances.tiers = static_cast<int>(begins.size()) + 1;
  return distances;
}

}  // namespace ubep
