// The stand-in experts run on what a rank received, as a caller's kernel would.
#pragma once

#include "support/reference.hpp"
#include "ubep/dispatch.hpp"

namespace ubep::test {

// Writes one row of `y` per received row (kernel weighting, or expert_major), or per entry of
// Received::expert_rows (owner weighting). `y` may be the received rows themselves.
void run_experts(const Received& received, const Problem& problem, int rank, Weighting weighting,
                 const Rows& y);

}  // namespace ubep::test
