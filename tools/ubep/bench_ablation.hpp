// `ubep bench --ablate`: the variants to measure, and the entries that their numbers become.
#pragma once

#include "tools/ubep/ablation.hpp"
#include "tools/ubep/bench_rank.hpp"
#include "tools/ubep/report.hpp"
#include "tools/ubep/stage.hpp"

namespace ubep::tools {

// Fills variants and communicators: all steps with each number of lanes.
void plan_ablation(BenchPlan& plan);

// `paths` are the results of all variants of the plan.
std::vector<AblationEntry> collect_ablation(Stage& stage, const BenchPlan& plan,
                                            const std::vector<PathResult>& paths);

}  // namespace ubep::tools
