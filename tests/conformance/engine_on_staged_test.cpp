// The engine where memory is not mapped and everything comes late: N ranks on one thread, moved on
// in an order drawn from a seed. Every received row and every combined bit is what the scalar
// reference says.
//
//   UBEP_SEEDS=1000 ubep_conformance_tests                 more seeds per test
//   UBEP_SEED=1000017 ubep_conformance_tests               one seed again
#include <gtest/gtest.h>

#include "conformance/staged_run.hpp"
#include "support/case_runner.hpp"

namespace ubep::test {
namespace {

constexpr int kGroups = 4;
constexpr int kSeedsPerGroup = 60;

class EngineOnStagedTest : public testing::TestWithParam<int> {};

TEST_P(EngineOnStagedTest, MatchesTheReference) {
  for (const std::uint64_t seed : seeds_of_group(GetParam(), kSeedsPerGroup)) {
    Case c = make_staged_case(seed);
    expect(c);
    ASSERT_EQ(run_staged(c, {}), "");
  }
}

TEST_P(EngineOnStagedTest, SurvivorsMatchAndAgree) {
  for (const std::uint64_t seed : seeds_of_group(GetParam(), kSeedsPerGroup)) {
    Case c = make_staged_case(seed);
    expect(c);
    ASSERT_EQ(run_staged(c, {.a_rank_dies = true}), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineOnStagedTest, testing::Range(0, kGroups));

}  // namespace
}  // namespace ubep::test
