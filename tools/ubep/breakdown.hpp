// What the lanes of all ranks spent one part of a layer on.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "ubep/trace.hpp"

namespace ubep::tools {

inline constexpr std::array<const char*, kActivities> kActivityNames = {
    "count", "send", "receive", "wait flag", "wait base", "barrier", "idle"};

// Microseconds of a lane, on average; `last_row`: from the start until it had stored its last row.
struct Breakdown {
  std::array<double, kActivities> us = {};
  double last_row_mean = 0;
  double last_row_max = 0;

  double of(Activity activity) const { return us[static_cast<std::size_t>(activity)]; }
  double total() const {
    double sum = 0;
    for (const double part : us) sum += part;
    return sum;
  }
  // Of the lanes' time: waits for peers, for places and at barriers.
  double sync_share() const {
    const double waits = of(Activity::wait_flag) + of(Activity::wait_base) + of(Activity::barrier);
    return total() == 0 ? 0 : waits / total();
  }
};

// `time(lane)` gives the microseconds of each activity and of the last row; n lanes in all.
template <class Time>
Breakdown average(std::size_t n, Time time) {
  Breakdown b;
  for (std::size_t i = 0; i < n; ++i) {
    const auto [us, last_row] = time(i);
    for (std::size_t a = 0; a < us.size(); ++a) b.us[a] += us[a] / static_cast<double>(n);
    b.last_row_mean += last_row / static_cast<double>(n);
    b.last_row_max = std::max(b.last_row_max, last_row);
  }
  return b;
}

// Of one phase, many times over: the mean of the middle half by time, so that a phase that another
// program interrupted says nothing, and what a median is made of is seen.
inline Breakdown typical(std::vector<Breakdown> phases) {
  std::sort(phases.begin(), phases.end(),
            [](const Breakdown& a, const Breakdown& b) { return a.total() < b.total(); });
  const std::size_t first = phases.size() / 4;
  const std::size_t n = phases.size() - 2 * first;
  Breakdown mean;
  for (std::size_t i = first; i < first + n; ++i) {
    const auto add = [n](double& sum, double value) { sum += value / static_cast<double>(n); };
    for (std::size_t a = 0; a < mean.us.size(); ++a) add(mean.us[a], phases[i].us[a]);
    add(mean.last_row_mean, phases[i].last_row_mean);
    add(mean.last_row_max, phases[i].last_row_max);
  }
  return mean;
}

}  // namespace ubep::tools
