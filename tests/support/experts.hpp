// The stand-in experts run on what a rank received, as a caller's kernel would.
#pragma once

#include "support/reference.hpp"
#include "ubep/dispatch.hpp"

namespace ubep::test {

// One output row per choice of one expert, without weights: expert layouts, or Weighting::owner.
struct LocalExpert {
  int rank = 0;
  int local = 0;
};
void run_expert(const Received& received, const Problem& problem, const LocalExpert& expert,
                const Rows& y);
// Writes one row of `y` per received row (kernel weighting, or expert_major), or per entry of
// Received::expert_rows (owner weighting). `y` may be the received rows themselves.
void run_experts(const Received& received, const Problem& problem, int rank, Weighting weighting,
                 const Rows& y);

}  // namespace ubep::test
