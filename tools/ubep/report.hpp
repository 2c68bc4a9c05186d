// The benchmark's result, as JSON ("ubep-bench/1") and as a table.
//
// Purpose: one set of structs that the benchmark fills, and the two forms it is printed in. What
// was not measured is left empty and is then absent from the JSON, never 0.
// Not for: measuring, or for summing up samples (see summary.hpp).
//
//   BenchResult result{.version = "0.1.0", .machine = read_machine()};
//   ...                                                 // fill config and points
//   print_table(result, stdout);
//   write_file("result.json", to_json(result).dump(2));  // with <nlohmann/json.hpp>
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ubep/ablation.hpp"
#include "tools/ubep/machine.hpp"
#include "tools/ubep/summary.hpp"
#include "ubep/trace.hpp"

namespace ubep::tools {

struct BenchConfig {
  int hidden = 0;
  int topk = 0;
  int experts = 0;
  std::string dtype = "bf16";
  std::string quant = "none";
  std::string routing = "uniform";
  std::vector<int> lanes = {1};  // one number, or those of --ablate
  int slots = 2;
  int iters = 0;
  std::uint64_t seed = 1;
};

// One operation of one path.
struct Timing {
  Summary us;                        // microseconds
  std::optional<double> wire_gbps;   // GB/s of the bytes that crossed between ranks
  std::optional<double> dedup_gbps;  // GB/s of the bytes of each (token, rank) counted once
};

// Fractions of the time, 0..1.
struct TimeShare {
  double copy = 0;
  double wait_flag = 0;
  double wait_base = 0;
  double barrier = 0;
  double idle = 0;
};

// Copies of each received row, on average over all rows and ranks, the rows of a rank to itself
// counted.
struct Copies {
  double dispatch = 0;
  double combine = 0;
};

// What went from host to host in a dispatch and its combine, all ranks together.
struct Crossed {
  double bytes = 0;
  // One row for each token and other host that has one of its experts, each way.
  double minimum_bytes = 0;

  std::optional<double> ratio() const {
    return minimum_bytes > 0 ? std::optional(bytes / minimum_bytes) : std::nullopt;
  }
};

struct PathResult {
  std::string path;
  std::string variant;
  std::string store;  // near | far
  std::string protocol;
  std::string layout;
  std::string chosen_by;  // user | auto
  std::string reason;
  std::optional<Timing> dispatch;
  std::optional<Timing> combine;
  std::optional<Timing> round_trip;
  std::optional<Timing> cycle;
  std::optional<TimeShare> time_share;
  std::optional<Copies> copies;
  std::optional<Roles> roles;      // of more than one lane
  std::optional<Crossed> crossed;  // where ranks may be on several hosts
};

// Clocks of different hosts cannot be compared: with this, a time is the longest that any rank
// measured of the iteration with its own clock, else from the first rank's start to the last one's
// end.
struct Hosts {
  std::vector<int> of_rank;
  std::vector<std::string> names;  // [ranks]
  std::string transport;           // between them
};

struct Load {
  double expert_max_over_mean = 1;
  double rank_max_over_mean = 1;
};

struct MemoryUse {
  std::uint64_t reserved = 0;  // bytes
  std::uint64_t resident = 0;  // bytes
};

struct Check {
  bool passed = false;
  std::int64_t mismatches = 0;
  double calc_diff = 0;  // null in the JSON when NaN
};

// One number of ranks and tokens, measured on several paths; the first is what the ratios refer to.
struct Point {
  int ranks = 0;
  std::vector<int> tokens;    // [ranks]
  std::optional<int> rounds;  // dispatches of a layer, where more is sent than is reserved
  Load load;
  std::optional<Hosts> hosts;  // where ranks may be on several
  std::optional<MemoryUse> memory;
  std::optional<double> first_call_us;
  std::optional<double> cores_used;  // CPU time over wall time of the whole cycles, all ranks
  std::optional<Check> check;
  std::vector<PathResult> paths;
  std::vector<AblationEntry> ablation;  // of --ablate, instead of paths
};

struct BenchResult {
  std::string version;
  Machine machine;
  std::optional<PlacementProbe> probe_after;  // the placement once all points were measured
  BenchConfig config;
  std::vector<Point> points;
};

// All numbers but calc_diff are rounded to three decimals. `ratio_to_first` is a path's p50 over
// that of the point's first path, for each operation that both have.
nlohmann::ordered_json to_json(const BenchResult& result);

// The machine, the configuration, then one row per point and path. Times in microseconds.
void print_table(const BenchResult& result, std::FILE* out);

}  // namespace ubep::tools
