// Deterministic simulation: the real engines of up to eight ranks in virtual time, on one thread,
// on machines that differ in everything the concept of a fabric leaves open. Every call returns
// exactly what the scalar reference says, or a right Status, and nobody waits for ever.
//
//   UBEP_SEEDS=100000 ubep_simulation_tests               more seeds
//   UBEP_SEED=17 ubep_simulation_tests                    one seed again
//   ubep_fuzz --seed 17 --transcript                      and what happens in it
#include <gtest/gtest.h>

#include "simulation/sim_run.hpp"
#include "support/case_runner.hpp"

namespace ubep::test {
namespace {

constexpr int kGroups = 8;
#if defined(__SANITIZE_ADDRESS__)
constexpr int kSeedsPerGroup = 50;
#else
constexpr int kSeedsPerGroup = 1250;
#endif

class SeedsTest : public testing::TestWithParam<int> {};

TEST_P(SeedsTest, EveryCallReturnsWhatItShould) {
  for (const std::uint64_t seed : seeds_of_group(GetParam(), kSeedsPerGroup)) {
    const Result result = run(make_setup(seed));
    ASSERT_EQ(result.error, "") << "rerun: UBEP_SEED=" << seed << ", or ubep_fuzz --seed " << seed
                                << " --shrink\n"
                                << describe(make_setup(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, SeedsTest, testing::Range(0, kGroups));

}  // namespace
}  // namespace ubep::test
