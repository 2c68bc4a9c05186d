// The runs of a plan (sim_options.hpp), on several threads.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/layer_run.hpp"
#include "tools/ubep/breakdown.hpp"
#include "tools/ubep/sim/options.hpp"

namespace ubep::tools {

// What is kept of dispatch or combine of one run.
struct OperationRun {
  std::vector<double> us;  // [ranks]
  Breakdown lanes;
};

struct LayerRun {
  OperationRun dispatch;
  OperationRun combine;
  double experts = 0;  // us, the mean over ranks
  Roles roles;
  double moved_bytes = 0;              // of rows that a rank gets and returns, on average
  std::uint64_t dispatched_bytes = 0;  // of a row
  std::uint64_t bytes_sent = 0;
  std::uint64_t events = 0;
  std::int64_t wrong_rows = 0;
};

LayerRun summarize(const sim::LayerOptions& options, const sim::LayerResult& result);

// What every path waits for: the way to the furthest rank, and the bytes of the busiest rank, one
// way, at the rates of its port. Microseconds.
struct NullModel {
  double latency = 0;
  double dispatch = 0;  // latency + bytes
  double combine = 0;
};
// `options` with their routing.
NullModel null_model(const sim::LayerOptions& options);

class SimGrid {
 public:
  // Runs all; the same figures whatever the plan's `jobs` is.
  explicit SimGrid(const SimPlan& plan);

  const LayerRun& run(std::size_t tokens, std::size_t path, std::size_t variant,
                      std::size_t seed) const {
    return runs_[index(tokens, path, variant, seed)];
  }
  // Of the first variant and path, the mean over seeds.
  NullModel null(std::size_t tokens) const;
  std::uint64_t events() const;

 private:
  std::size_t index(std::size_t tokens, std::size_t path, std::size_t variant,
                    std::size_t seed) const {
    return ((tokens * plan_.paths.size() + path) * plan_.variants.size() + variant) *
               plan_.seeds.size() +
           seed;
  }
  void run_one(std::size_t number);

  const SimPlan& plan_;
  // [tokens x seeds]
  std::vector<std::vector<std::vector<std::int32_t>>> choices_;
  std::vector<LayerRun> runs_;
};

}  // namespace ubep::tools
