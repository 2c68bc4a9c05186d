// A pushing source's side: where its rows begin on an owner, summed from the counts of all sources.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/group_config.hpp"
#include "base/rank_set.hpp"
#include "plan/receive_plan.hpp"

namespace ubep {

struct PushPair {
  int self = 0;
  int owner = 0;
  RankSet absent;  // sources that send nothing
};

// counts[q]: rows of source q per expert position [E] (SendPlan::group_rows). Fills `bases` [local
// experts of owner], as the owner's make_receive_plan() gives them for source `self`.
void sum_bases(const ExpertMap& experts, std::span<const std::vector<std::uint32_t>> counts,
               const ExpertRoom& room, const PushPair& pair, std::uint32_t* bases);

}  // namespace ubep
