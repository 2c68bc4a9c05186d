// How far ranks are from each other, as tiers: classes of distance, 0 for a rank itself.
//
//   const Distances far = distances_of_latencies(measured, {.ranks = 4});
//   far.from(rank);  // what a schedule wants to know
//
// Plain data, made at set-up. Read from a file by sim/topology.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ubep {

struct Distances {
  int ranks = 0;
  int tiers = 1;                    // one more than the largest that occurs
  std::vector<std::uint16_t> tier;  // [ranks x ranks], a row per rank that looks

  std::span<const std::uint16_t> from(int rank) const {
    const auto num = static_cast<std::size_t>(ranks);
    return std::span(tier).subspan(static_cast<std::size_t>(rank) * num, num);
  }
};

// Groups of consecutive ranks: others of the same smallest group are tier 1, others of the next
// larger one tier 2, and so on. sizes: ascending, each a multiple of the one before, the last at
// least `ranks`, which need not be a multiple. Throws Error(invalid_argument).
Distances distances_of_groups(std::span<const int> sizes, int ranks);

struct LatencyTiers {
  int ranks = 0;
  double ratio = 1.5;  // at least 1.05
};

// One-way latencies in ns, [ranks x ranks], a row per sender; those to oneself do not count.
// Sorted, a new tier begins where one is more than `ratio` times the one before. So a chain of
// small steps is one tier, however long. Throws Error(invalid_argument).
Distances distances_of_latencies(std::span<const double> ns, const LatencyTiers& options);

}  // namespace ubep
