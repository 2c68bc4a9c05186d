#include "tools/ubep/sim/points.hpp"

#include <algorithm>
#include <numeric>

namespace ubep::tools {
namespace {

using Means = PathFigures::Means;

// Of several runs with as many lanes.
Breakdown mean_lanes(std::span<const Breakdown> runs) {
  Breakdown b;
  const auto n = static_cast<double>(runs.size());
  for (const Breakdown& run : runs) {
    for (std::size_t a = 0; a < b.us.size(); ++a) b.us[a] += run.us[a] / n;
    b.last_row_mean += run.last_row_mean / n;
    b.last_row_max = std::max(b.last_row_max, run.last_row_max);
  }
  return b;
}

OperationFigures figures(std::span<const LayerRun* const> runs, OperationRun LayerRun::*operation) {
  OperationFigures f;
  std::vector<double> us;
  std::vector<Breakdown> lanes;
  for (const LayerRun* run : runs) {
    us.insert(us.end(), (run->*operation).us.begin(), (run->*operation).us.end());
    lanes.push_back((run->*operation).lanes);
  }
  f.mean = mean(us);
  const Summary summary = summarize(std::move(us));
  f.p50 = summary.p50;
  f.p99 = summary.p99;
  f.lanes = mean_lanes(lanes);
  f.max_lane = f.lanes.last_row_max;
  return f;
}

template <class Value>
Interval over_variants(const SimPlan& plan, Value value) {
  std::vector<Weighted> values;
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    values.push_back({value(v), plan.variants[v].weight});
  }
  return interval_of(values);
}

// The variant whose dispatch + combine is the median.
std::size_t median_variant(const SimPlan& plan, const std::vector<Means>& means) {
  const auto both = [&](std::size_t v) { return means[v].dispatch + means[v].combine; };
  const double mid = over_variants(plan, both).mid;
  std::size_t v = 0;
  while (v + 1 < means.size() && both(v) != mid) ++v;
  return v;
}

class PathRuns {
 public:
  PathRuns(const SimPlan& plan, const SimGrid& grid, std::size_t tokens, std::size_t path)
      : plan_(plan), grid_(grid), tokens_(tokens), path_(path) {}

  std::vector<const LayerRun*> of(std::size_t variant) const {
    std::vector<const LayerRun*> runs;
    for (std::size_t s = 0; s < plan_.seeds.size(); ++s) {
      runs.push_back(&grid_.run(tokens_, path_, variant, s));
    }
    return runs;
  }

  Means means(std::size_t variant) const {
    Means m;
    const auto n = static_cast<double>(plan_.seeds.size());
    for (const LayerRun* run : of(variant)) {
      m.dispatch += mean(run->dispatch.us) / n;
      m.combine += mean(run->combine.us) / n;
    }
    return m;
  }

  std::int64_t wrong_rows() const {
    std::int64_t wrong = 0;
    for (std::size_t v = 0; v < plan_.variants.size(); ++v) {
      for (const LayerRun* run : of(v)) wrong += run->wrong_rows;
    }
    return wrong;
  }

 private:
  const SimPlan& plan_;
  const SimGrid& grid_;
  std::size_t tokens_;
  std::size_t path_;
};

double sync_share(const Breakdown& dispatch, const Breakdown& combine) {
  Breakdown both = dispatch;
  for (std::size_t a = 0; a < both.us.size(); ++a) both.us[a] += combine.us[a];
  return both.sync_share();
}

PathFigures path_figures(const SimPlan& plan, const SimGrid& grid, std::size_t tokens,
                         std::size_t path) {
  const PathRuns runs(plan, grid, tokens, path);
  PathFigures f;
  f.path = plan.paths[path].text;
  for (std::size_t v = 0; v < plan.variants.size(); ++v) f.variants.push_back(runs.means(v));
  const std::size_t variant = median_variant(plan, f.variants);
  f.variant = plan.variants[variant].name;
  const sim::LayerOptions options = plan.options(plan.tokens[tokens], plan.paths[path],
                                                 plan.variants[variant], plan.seeds.front());
  f.protocol = protocol_text({options.protocol, options.checksum_rows});
  f.dispatched_bytes = sim::dispatched_bytes(options);
  const std::vector<const LayerRun*> typical = runs.of(variant);
  f.dispatch = figures(typical, &LayerRun::dispatch);
  f.combine = figures(typical, &LayerRun::combine);
  f.dispatch.ensemble = over_variants(plan, [&](std::size_t v) { return f.variants[v].dispatch; });
  f.combine.ensemble = over_variants(plan, [&](std::size_t v) { return f.variants[v].combine; });
  f.roles = typical.front()->roles;
  double moved = 0;
  for (const LayerRun* run : typical) {
    const auto n = static_cast<double>(typical.size());
    f.bytes_sent += static_cast<double>(run->bytes_sent) / n;
    moved += run->moved_bytes / n;
  }
  const double us = f.dispatch.mean + f.combine.mean;
  f.effective_gbps = us == 0 ? 0 : moved / us * 1e-3;
  f.sync_share = sync_share(f.dispatch.lanes, f.combine.lanes);
  f.wrong_rows = runs.wrong_rows();
  return f;
}

Interval reduction(const SimPlan& plan, const PathFigures& bsp, const PathFigures& path,
                   double Means::*part) {
  return over_variants(plan, [&](std::size_t v) {
    const double before = bsp.variants[v].*part;
    return before == 0 ? 0 : 1 - path.variants[v].*part / before;
  });
}

void compare(const SimPlan& plan, SimPoint& point) {
  const auto is_bsp = [](const PathFigures& path) { return path.path == name(Path::bsp); };
  const auto bsp = std::find_if(point.paths.begin(), point.paths.end(), is_bsp);
  for (std::size_t a = 0; a < point.paths.size(); ++a) {
    const PathFigures& one = point.paths[a];
    if (bsp != point.paths.end() && !is_bsp(one)) {
      point.reductions.push_back({one.path, reduction(plan, *bsp, one, &Means::dispatch),
                                  reduction(plan, *bsp, one, &Means::combine)});
    }
    for (std::size_t b = a + 1; b < point.paths.size(); ++b) {
      const PathFigures& other = point.paths[b];
      const auto rank = [&](const char* operation, double Means::*part) {
        const Interval difference = over_variants(
            plan, [&](std::size_t v) { return one.variants[v].*part - other.variants[v].*part; });
        if (difference.contains_zero()) {
          point.unranked.push_back({operation, one.path, other.path});
        }
      };
      rank("dispatch", &Means::dispatch);
      rank("combine", &Means::combine);
    }
  }
}

}  // namespace

Interval interval_of(std::span<const Weighted> values) {
  const auto at = [&](int percent) {
    return weighted_percentile({values.begin(), values.end()}, percent);
  };
  return {at(5), at(50), at(95)};
}

std::vector<SimPoint> points_of(const SimPlan& plan, const SimGrid& grid) {
  std::vector<SimPoint> points;
  for (std::size_t t = 0; t < plan.tokens.size(); ++t) {
    SimPoint point{.tokens = plan.tokens[t], .null = grid.null(t)};
    for (std::size_t p = 0; p < plan.paths.size(); ++p) {
      point.paths.push_back(path_figures(plan, grid, t, p));
    }
    compare(plan, point);
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace ubep::tools
