#include "tools/ubep/sim_ablation.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ubep::tools {
namespace {

double us_of(sim::Time time) { return static_cast<double>(time) / double{sim::kMicrosecond}; }

// Copies of a row, on average.
double copies(const sim::LayerResult& result, std::uint64_t row_bytes,
              std::uint64_t sim::RankTimes::*copied) {
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
  for (const sim::RankTimes& rank : result.ranks) {
    bytes += rank.*copied;
    rows += rank.rows;
  }
  return rows == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(rows * row_bytes);
}

AblationEntry measure(const sim::LayerOptions& options, const AblationStep& step) {
  const sim::LayerResult result = sim::run_layer(options);
  const std::uint64_t row_bytes =
      static_cast<std::uint64_t>(options.hidden) * size_of(options.dtype);
  AblationEntry e;
  e.step = step.name;
  e.lanes = options.lanes;
  e.path = name(options.path);
  e.store = "far";
  if (options.path != Path::bsp) e.roles = result.ranks[0].roles;
  e.dispatch_copies = copies(result, row_bytes, &sim::RankTimes::dispatch_copied);
  e.combine_copies = copies(result, row_bytes, &sim::RankTimes::combine_copied);
  e.us[0] = microseconds(result, &sim::RankTimes::dispatch, nullptr);
  e.us[1] = microseconds(result, &sim::RankTimes::combine, &sim::RankTimes::combine_start);
  std::vector<double> both;
  for (const sim::RankTimes& rank : result.ranks) {
    both.push_back(us_of(rank.dispatch) + us_of(rank.combine - rank.combine_start));
  }
  e.us[2] = summarize(std::move(both));
  e.us[3] = microseconds(result, &sim::RankTimes::combine, nullptr);
  e.blocks = std::numeric_limits<int>::max();  // virtual time has no noise
  e.spent = {breakdown(result, &sim::RankTimes::dispatch_lanes),
             breakdown(result, &sim::RankTimes::combine_lanes)};
  return e;
}

}  // namespace

Breakdown breakdown(const sim::LayerResult& result,
                    std::vector<sim::LaneTimes> sim::RankTimes::*part) {
  std::vector<const sim::LaneTimes*> lanes;
  for (const sim::RankTimes& rank : result.ranks) {
    for (const sim::LaneTimes& lane : rank.*part) lanes.push_back(&lane);
  }
  return average(lanes.size(), [&](std::size_t i) {
    std::array<double, kActivities> spent;
    std::transform(lanes[i]->spent.begin(), lanes[i]->spent.end(), spent.begin(), us_of);
    return std::pair(spent, us_of(lanes[i]->last_row));
  });
}

Summary microseconds(const sim::LayerResult& result, sim::Time sim::RankTimes::*end,
                     sim::Time sim::RankTimes::*begin) {
  std::vector<double> values;
  for (const sim::RankTimes& times : result.ranks) {
    values.push_back(us_of(times.*end - (begin == nullptr ? 0 : times.*begin)));
  }
  return summarize(std::move(values));
}

std::vector<AblationEntry> ablate(sim::LayerOptions options, const std::vector<int>& lanes) {
  std::vector<AblationEntry> entries;
  options.aligned = true;
  const Roles roles = options.roles;
  for (const int n : lanes) {
    const std::size_t first = entries.size();
    for (const AblationStep& step : ablation_steps()) {
      CommunicatorOptions adjusted;
      if (step.adjust != nullptr) step.adjust(adjusted);
      options.lanes = n;
      options.path = step.path;
      options.roles = step.path == Path::bsp ? Roles{} : roles;
      options.order = step.order;
      options.protocol = adjusted.protocol;
      options.checksum_rows = adjusted.checksum_rows;
      options.stage_pushed = adjusted.stage_pushed;
      entries.push_back(measure(options, step));
      entries.back().first = first;
      entries.back().on = first + step.on;
    }
  }
  return entries;
}

}  // namespace ubep::tools
