// `ubep sim tpot`: the time of a model's decode step, with bsp and with push.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/ubep/presets.hpp"
#include "tools/ubep/sim/options.hpp"
#include "tools/ubep/sim/points.hpp"

namespace ubep::tools {

struct TpotCommand {
  SimCommand sim;        // of which pod, run and preset options are set
  double layer_us = 0;   // of a layer but for dispatch, experts and combine
  double token_us = 0;   // the same, for each token of a rank
  double expert_us = 0;  // of a rank's experts, with as many rows as the mean
  double jitter_us = 0;
  int micro_batches = 1;
  double limit_ms = 0;
  std::string sweep;
};

void add_tpot_options(CLI::App& app, TpotCommand& command);

// "ranks=64,128,tokens=8,16": the values of each, empty where it is not named. Throws InputError.
struct TpotSweep {
  std::vector<int> ranks;
  std::vector<int> tokens;
};
TpotSweep parse_tpot_sweep(const std::string& text);

struct TpotPath {
  std::string path;
  Interval exchange_us;  // dispatch, experts and combine of a layer
  Interval mean_ms;      // of a step; where non-expert time is known
  Interval p99_ms;
  double tokens_per_s = 0;  // of a rank, at the median of the mean
  bool on_front = false;    // no other point of the path has a shorter step and more tokens
};

struct TpotPoint {
  int ranks = 0;
  int tokens = 0;
  std::optional<Interval> non_expert_us;  // of a layer
  bool derived = false;                   // from a published time of a layer
  std::vector<TpotPath> paths;            // bsp, push
  Interval gain_mean_ms;                  // bsp - push
  Interval gain_p99_ms;
};

struct TpotResult {
  ModelShape model;
  std::vector<TpotPoint> points;
  std::uint64_t events = 0;
};

// Returns the exit code. Throws InputError or ubep::Error.
int run_tpot(const CLI::App& app, const TpotCommand& command);

}  // namespace ubep::tools
