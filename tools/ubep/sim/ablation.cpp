#include "tools/ubep/sim/ablation.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace ubep::tools {
namespace {

using sim::us_of;

// Copies of a row, on average.
double copies(const std::vector<sim::RankTimes>& ranks, std::uint64_t row_bytes,
              std::uint64_t sim::RankTimes::*copied) {
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
  for (const sim::RankTimes& rank : ranks) {
    bytes += rank.*copied;
    rows += rank.rows;
  }
  return rows == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(rows * row_bytes);
}

// When the slowest rank was done.
struct Slowest {
  double dispatch = 0;
  double combine = 0;
  double all = 0;
};

Slowest slowest(const sim::LayerResult& result) {
  Slowest s;
  for (const sim::RankTimes& rank : result.ranks) {
    s.dispatch = std::max(s.dispatch, us_of(rank.dispatch));
    s.combine = std::max(s.combine, us_of(rank.combine - rank.combine_start));
    s.all = std::max(s.all, us_of(rank.combine));
  }
  return s;
}

// Sample by sample, one for each seed.
AblationEntry measure(const std::vector<sim::LayerOptions>& runs, const AblationStep& step) {
  AblationEntry e;
  e.step = step.name;
  e.lanes = runs[0].lanes;
  e.path = name(runs[0].path);
  e.store = "far";
  e.blocks = static_cast<int>(runs.size());
  std::array<std::vector<double>, kAblationTimes> samples;
  std::vector<sim::RankTimes> all;
  for (const sim::LayerOptions& options : runs) {
    const sim::LayerResult result = sim::run_layer(options);
    const Slowest s = slowest(result);
    samples[0].push_back(s.dispatch);
    samples[1].push_back(s.combine);
    samples[2].push_back(s.dispatch + s.combine);
    samples[3].push_back(s.all);
    all.insert(all.end(), result.ranks.begin(), result.ranks.end());
  }
  const std::uint64_t row_bytes =
      static_cast<std::uint64_t>(runs[0].hidden) * size_of(runs[0].dtype);
  const std::uint64_t dispatched = sim::dispatched_bytes(runs[0]);
  if (step.path != Path::bsp) e.roles = all[0].roles;
  e.dispatch_copies = copies(all, dispatched, &sim::RankTimes::dispatch_copied);
  e.combine_copies = copies(all, row_bytes, &sim::RankTimes::combine_copied);
  for (std::size_t t = 0; t < kAblationTimes; ++t) e.us[t] = summarize(std::move(samples[t]));
  e.spent = {breakdown(all, &sim::RankTimes::dispatch_lanes),
             breakdown(all, &sim::RankTimes::combine_lanes)};
  return e;
}

}  // namespace

Breakdown breakdown(const std::vector<sim::RankTimes>& ranks,
                    std::vector<sim::LaneTimes> sim::RankTimes::*part) {
  std::vector<const sim::LaneTimes*> lanes;
  for (const sim::RankTimes& rank : ranks) {
    for (const sim::LaneTimes& lane : rank.*part) lanes.push_back(&lane);
  }
  return average(lanes.size(), [&](std::size_t i) {
    std::array<double, kActivities> spent;
    std::transform(lanes[i]->spent.begin(), lanes[i]->spent.end(), spent.begin(), us_of);
    return std::pair(spent, us_of(lanes[i]->last_row));
  });
}

std::vector<AblationEntry> ablate(std::vector<sim::LayerOptions> runs,
                                  const std::vector<int>& lanes) {
  std::vector<AblationEntry> entries;
  const Roles roles = runs[0].roles;
  for (const int n : lanes) {
    const std::size_t first = entries.size();
    for (const AblationStep& step : ablation_steps()) {
      CommunicatorOptions adjusted;
      if (step.adjust != nullptr) step.adjust(adjusted);
      for (sim::LayerOptions& options : runs) {
        options.aligned = true;
        options.lanes = n;
        options.path = step.path;
        options.roles = step.path == Path::bsp ? Roles{} : roles;
        options.order = step.order;
        options.protocol = adjusted.protocol;
        options.checksum_rows = adjusted.checksum_rows;
        options.stage_pushed = adjusted.stage_pushed;
      }
      entries.push_back(measure(runs, step));
      entries.back().first = first;
      entries.back().on = first + step.on;
    }
  }
  return entries;
}

}  // namespace ubep::tools
