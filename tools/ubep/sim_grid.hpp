// The runs of a plan (sim_options.hpp), on several threads.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/layer_run.hpp"
#include "tools/ubep/breakdown.hpp"
#include "tools/ubep/sim_options.hpp"

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
  double received_bytes = 0;  // rows of a rank, on average
  std::uint64_t bytes_sent = 0;
  std::uint64_t events = 0;
  std::int64_t wrong_rows = 0;
};

LayerRun summarize(const sim::LayerOptions& options, const sim::LayerResult& result);

// What every path waits for: the way to the furthest rank, and the bytes of the busiest rank, one
// way, at the rate of its port. One operation, in microseconds.
struct NullModel {
  double latency = 0;
  double bytes = 0;  // the time that they take

  double us() const { return latency + bytes; }
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
  // Of the first variant, the mean over seeds.
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
