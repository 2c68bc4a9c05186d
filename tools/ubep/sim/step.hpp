// A decode step of a model, from the times of one MoE layer's dispatch and combine.
//
//   step = MoE layers x (non-expert time + dispatch + experts + combine) + dense layers x
//          non-expert time
//
// Layers follow each other and share nothing; each MoE layer of a step draws its times from those
// of the simulated seeds, each of which is another routing and other arrivals.
#pragma once

#include <cstdint>
#include <vector>

namespace ubep::tools {

struct StepModel {
  int moe_layers = 0;
  int dense_layers = 0;
  // 2: half of the tokens' dispatch, experts and combine go on beside the other half's rest, which
  // takes half of the non-expert time: at best. 1: one after the other.
  int micro_batches = 1;
};

// Of one MoE layer; `exchange` is that of tokens / micro_batches.
double layer_us(const StepModel& model, double non_expert, double exchange);

struct StepTimes {
  double mean = 0;
  double p99 = 0;  // over steps
};
// `exchanges` of the seeds; those of another path, in the same order, give the same draws. The same
// arguments give the same times.
StepTimes step_us(const StepModel& model, double non_expert, const std::vector<double>& exchanges);

}  // namespace ubep::tools
