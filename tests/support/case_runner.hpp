// Runs a random case with all its ranks and says what went wrong first.
#pragma once

#include <cstdint>
#include <string>

#include "support/cases.hpp"
#include "support/ranks.hpp"

namespace ubep::test {

struct CaseResult {
  std::string error;       // "" or the first difference, with the seed
  std::uint64_t hash = 0;  // of all combined rows of all ranks
};

// `delay_seed`: random sleeps between operations; 0 = none.
CaseResult run_case(const Case& c, RankKind kind, std::uint64_t delay_seed = 0);

// Seeds to run: UBEP_SEED alone, or `count` (UBEP_SEEDS, else `standard`) from a start that
// differs from group to group. Empty for other groups when UBEP_SEED is set.
std::vector<std::uint64_t> seeds_of_group(int group, int standard);

}  // namespace ubep::test
