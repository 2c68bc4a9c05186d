// What one rank of `ubep bench` does: set up, check, and measure all paths in turn.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/ubep/bench_options.hpp"
#include "tools/ubep/routing_source.hpp"
#include "tools/ubep/stage.hpp"
#include "ubep/ubep.hpp"

namespace ubep::tools {

// A path with one way of providing activations: what gets its own figures.
struct BenchVariant {
  BenchPath path;
  bool in_place = false;  // x is written into Communicator::input()
  int lanes = 1;
  Roles roles;
  SendOrder order = SendOrder::scheduled;
  std::size_t communicator = 0;  // of BenchPlan::adjusts
};

// Everything a rank needs, made before the fork.
struct BenchPlan {
  BenchOptions options;
  std::vector<int> tokens;  // [ranks]
  int max_tokens = 0;
  bool layers = false;                    // more tokens than that: run_layer()
  std::vector<std::int32_t> expert_rank;  // [E]
  std::vector<BenchVariant> variants;
  // One communicator each, by what differs from the options of all; null = nothing.
  std::vector<void (*)(CommunicatorOptions&)> adjusts = {nullptr};
  std::vector<std::vector<RankRouting>> routing;  // [sets][ranks]
};

// Times of one iteration in seconds since an arbitrary start, the same for all ranks.
struct BenchTimes {
  enum Field {
    dispatch_begin,
    dispatch_end,
    combine_begin,
    combine_end,
    cycle_begin,  // end of the iteration before
    cycle_end,
    count
  };
};

// What a rank says of a variant, from the last operation that it checked or warmed up with; and of
// its traced iterations the typical microseconds of a lane, per activity and until its last row
// (mean, most).
struct BenchNotes {
  static constexpr int kPerPhase = kActivities + 2;
  enum Field {
    path,
    far,
    rows,
    dispatch_copied,
    combine_copied,
    lanes_count,
    lanes_send,
    lanes_receive,
    crossed,  // bytes to other hosts, of a dispatch and its combine
    traced,   // 1 = there were charges
    dispatch_spent,
    combine_spent = dispatch_spent + kPerPhase,
    reason = combine_spent + kPerPhase,
    count = reason + 16
  };
  static constexpr std::size_t kReasonBytes = 16 * sizeof(double);
};

// Numbers of a rank in the stage: first those of Scalars, then [variants] x BenchNotes, then
// [variants][iters] x BenchTimes.
struct BenchScalars {
  enum Field {
    first_call,
    mismatches,
    dot_actual_expected,  // the sums behind calc_diff
    dot_actual,
    dot_expected,
    store_far,
    flag_one_way_ns,
    resident_bytes,
    cpu_seconds,
    wall_seconds,
    count
  };
};
std::size_t stage_doubles(const BenchPlan& plan);
std::size_t notes_at(std::size_t variant);
std::size_t times_at(const BenchPlan& plan, std::size_t variant, int iteration);
CommunicatorOptions communicator_options(const BenchPlan& plan, std::size_t communicator);

constexpr int kBlock = 20;  // iterations of one variant before the next has its turn

// Returns the exit code; failures are told to the stage.
int run_bench_rank(const Bootstrap& bootstrap, const BenchPlan& plan, Stage& stage);

}  // namespace ubep::tools
