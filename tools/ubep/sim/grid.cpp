#include "tools/ubep/sim/grid.hpp"

#include <algorithm>
#include <numeric>

#include "tools/ubep/jobs.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/sim/ablation.hpp"

namespace ubep::tools {
namespace {

using sim::us_of;

double combined_bytes(const sim::LayerOptions& o) {
  return static_cast<double>(o.hidden) * static_cast<double>(size_of(o.dtype));
}

// Time that ports are busy with one byte of each row; as bytes, [ranks].
struct Busy {
  std::vector<double> out;
  std::vector<double> in;

  double most() const {
    return std::max(*std::max_element(out.begin(), out.end()),
                    *std::max_element(in.begin(), in.end()));
  }
};

// us per byte of a row from one rank to another.
double us_per_byte(const sim::Pod& pod, int from, int to) {
  std::uint64_t rate = std::min(pod.port, pod.memory);
  if (const std::uint64_t tier = pod.tier(from, to).rate; tier != 0) rate = std::min(rate, tier);
  const double left = 1 - static_cast<double>(pod.background) /
                              static_cast<double>(std::max<std::uint64_t>(pod.port, 1));
  return 1e6 / (static_cast<double>(rate) * left);
}

Busy busy_ports(const sim::LayerOptions& o) {
  const std::vector<std::int32_t> owner = block_map(o.experts, o.ranks);
  Busy busy{.out = std::vector<double>(static_cast<std::size_t>(o.ranks)),
            .in = std::vector<double>(static_cast<std::size_t>(o.ranks))};
  const auto topk = static_cast<std::size_t>(o.topk);
  std::vector<std::int32_t> seen;  // owners of a token, where a row goes to a rank once
  for (std::size_t r = 0; r < o.topk_idx.size(); ++r) {
    for (std::size_t i = 0; i < o.topk_idx[r].size(); ++i) {
      if (i % topk == 0) seen.clear();
      const std::int32_t id = o.topk_idx[r][i];
      if (id < 0) continue;
      const std::int32_t to = owner[static_cast<std::size_t>(id)];
      if (o.layout == Layout::rank_major) {
        if (std::find(seen.begin(), seen.end(), to) != seen.end()) continue;
        seen.push_back(to);
      }
      if (static_cast<std::size_t>(to) == r) continue;
      const double us = us_per_byte(o.pod, static_cast<int>(r), to);
      busy.out[r] += us;
      busy.in[static_cast<std::size_t>(to)] += us;
    }
  }
  return busy;
}

}  // namespace

LayerRun summarize(const sim::LayerOptions& options, const sim::LayerResult& result) {
  LayerRun run;
  const auto ranks = static_cast<double>(result.ranks.size());
  double rows = 0;
  for (const sim::RankTimes& rank : result.ranks) {
    run.dispatch.us.push_back(us_of(rank.dispatch));
    run.combine.us.push_back(us_of(rank.combine - rank.combine_start));
    run.experts += us_of(rank.combine_start - rank.first_read) / ranks;
    rows += static_cast<double>(rank.rows);
  }
  run.dispatch.lanes = breakdown(result.ranks, &sim::RankTimes::dispatch_lanes);
  run.combine.lanes = breakdown(result.ranks, &sim::RankTimes::combine_lanes);
  run.roles = result.ranks.front().roles;
  run.dispatched_bytes = sim::dispatched_bytes(options);
  run.moved_bytes =
      rows / ranks * (static_cast<double>(run.dispatched_bytes) + combined_bytes(options));
  run.bytes_sent = result.bytes_sent;
  run.events = result.events;
  run.wrong_rows = result.wrong_rows;
  return run;
}

NullModel null_model(const sim::LayerOptions& o) {
  if (o.ranks == 1) return {};
  const double latency = us_of(o.pod.tier(0, o.ranks - 1).latency);
  const double busy = busy_ports(o).most();
  return {.latency = latency,
          .dispatch = latency + busy * static_cast<double>(sim::dispatched_bytes(o)),
          .combine = latency + busy * combined_bytes(o)};
}

SimGrid::SimGrid(const SimPlan& plan)
    : plan_(plan),
      runs_(plan.tokens.size() * plan.paths.size() * plan.variants.size() * plan.seeds.size()) {
  for (const int tokens : plan.tokens) {
    for (const std::uint64_t seed : plan.seeds) choices_.push_back(plan.make_choices(tokens, seed));
  }
  // The longest first, so that no thread is left with one at the end.
  std::vector<std::size_t> order(runs_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t runs_of_point = runs_.size() / plan.tokens.size();
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return plan.tokens[a / runs_of_point] > plan.tokens[b / runs_of_point];
  });
  run_jobs(runs_.size(), plan.jobs, [&](std::size_t i) { run_one(order[i]); });
}

void SimGrid::run_one(std::size_t number) {
  std::size_t rest = number;
  const auto take = [&rest](std::size_t size) {
    const std::size_t i = rest % size;
    rest /= size;
    return i;
  };
  const std::size_t seed = take(plan_.seeds.size());
  const std::size_t variant = take(plan_.variants.size());
  const std::size_t path = take(plan_.paths.size());
  sim::LayerOptions options = plan_.options(plan_.tokens[rest], plan_.paths[path],
                                            plan_.variants[variant], plan_.seeds[seed]);
  options.topk_idx = choices_[rest * plan_.seeds.size() + seed];
  runs_[number] = summarize(options, sim::run_layer(options));
}

NullModel SimGrid::null(std::size_t tokens) const {
  NullModel mean;
  const auto n = static_cast<double>(plan_.seeds.size());
  for (std::size_t seed = 0; seed < plan_.seeds.size(); ++seed) {
    sim::LayerOptions options = plan_.options(plan_.tokens[tokens], plan_.paths.front(),
                                              plan_.variants.front(), plan_.seeds[seed]);
    options.topk_idx = choices_[tokens * plan_.seeds.size() + seed];
    const NullModel one = null_model(options);
    mean.latency += one.latency / n;
    mean.dispatch += one.dispatch / n;
    mean.combine += one.combine / n;
  }
  return mean;
}

std::uint64_t SimGrid::events() const {
  return std::accumulate(runs_.begin(), runs_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const LayerRun& run) { return sum + run.events; });
}

}  // namespace ubep::tools
