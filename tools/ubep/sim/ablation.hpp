// `ubep sim --ablate`: the steps of ablation.hpp in virtual time.
#pragma once

#include <vector>

#include "sim/layer_run.hpp"
#include "tools/ubep/ablation.hpp"
#include "tools/ubep/breakdown.hpp"

namespace ubep::tools {

// Over all lanes of all ranks.
Breakdown breakdown(const std::vector<sim::RankTimes>& ranks,
                    std::vector<sim::LaneTimes> sim::RankTimes::*part);

// Each step with each number of lanes. `runs`: the same but for seed and routing; a sample of a
// time is that of one run's slowest rank. All ranks start combines together.
std::vector<AblationEntry> ablate(std::vector<sim::LayerOptions> runs,
                                  const std::vector<int>& lanes);

}  // namespace ubep::tools
