// One MoE layer's dispatch and combine on a pod: every rank runs the library's engine.
//
// Ranks start together, and experts take no time, unless options say otherwise. Between dispatch
// and combine is the first read of the received rows, by all lanes, and then the experts.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/lane_times.hpp"
#include "sim/pod.hpp"
#include "sim/record.hpp"
#include "ubep/types.hpp"

namespace ubep::sim {

struct LayerOptions {
  Pod pod;
  int ranks = 0;
  int lanes = 1;
  int tokens = 0;  // of each rank
  int hidden = 0;
  int topk = 0;
  int experts = 0;
  DType dtype = DType::bf16;  // of combined rows, and of dispatched ones unless
  Quant quant = Quant::none;  //   they are quantised, or
  int record_bytes = 0;       //   have this size; no such rows move
  Layout layout = Layout::expert_major;
  Path path = Path::push;  // read needs mapped memory; the others fetch what they read
  Roles roles;             // all 0: by the cost model
  SendOrder order = SendOrder::scheduled;
  bool stage_pushed = false;
  bool aligned = false;  // all ranks start the combine together, when all have read their rows
  Protocol protocol = Protocol::automatic;  // of pushed rows
  int checksum_rows = 0;
  bool moves_rows = false;  // and then compares what comes back; times are the same
  // [ranks][tokens x topk], -1 = none. Empty: each token has `topk` different experts, all alike.
  std::vector<std::vector<std::int32_t>> topk_idx;
  std::uint64_t seed = 1;
  Time arrival = 0;     // ranks start late by an exponential time of this mean, at most 10 times it
  Time expert_row = 0;  // experts' time for a received row, between its first read and the combine
  std::vector<LaneSlice>* slices = nullptr;  // gets what each lane did when; times are the same
};

// Of one rank, from the common start (before it arrives) to the end of each part, and to the start
// of the combine.
struct RankTimes {
  Time dispatch = 0;
  Time first_read = 0;
  Time combine_start = 0;
  Time combine = 0;
  std::vector<LaneTimes> dispatch_lanes;  // [lanes]
  std::vector<LaneTimes> combine_lanes;
  Roles roles;                        // of the dispatch
  std::uint64_t dispatch_copied = 0;  // payload bytes
  std::uint64_t combine_copied = 0;
  std::uint64_t rows = 0;  // received
};

struct LayerResult {
  std::vector<RankTimes> ranks;
  std::uint64_t events = 0;
  std::uint64_t bytes_sent = 0;
  std::int64_t wrong_rows = 0;  // of combined rows, where rows move
};

// Of a dispatched row.
std::uint64_t dispatched_bytes(const LayerOptions& options);

// Throws ubep::Error(invalid_argument) when the pod has fewer ranks, or options do not go together.
void check_layer(const LayerOptions& options);

// The same, and runs it. Several threads may each run one.
LayerResult run_layer(const LayerOptions& options);

}  // namespace ubep::sim
