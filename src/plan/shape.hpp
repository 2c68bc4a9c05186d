// What one dispatch looks like to the plan: the part of DispatchOptions that places rows.
#pragma once

#include "base/group_config.hpp"
#include "ubep/types.hpp"

namespace ubep {

struct PlanShape {
  Layout layout = Layout::rank_major;
  Reduction reduction = Reduction::per_rank;  // resolved
  bool topk1 = false;
  bool every_token = false;  // allgather: a row per token on every rank
  int topk = 0;

  // One row per (token, k) rather than one per (token, rank).
  bool row_per_choice() const { return is_by_expert(layout) || topk1; }
  // Groups of rows that have a base of their own on owner `rank`.
  int groups(const ExpertMap& experts, int rank) const {
    return is_by_expert(layout) ? experts.num_local(rank) : 1;
  }
};

}  // namespace ubep
