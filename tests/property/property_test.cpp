// Random cases with ranks as threads: every received row and every combined bit is what the scalar
// reference says.
//
//   UBEP_SEEDS=1000 ubep_property_tests                    more seeds per test
//   UBEP_SEED=3000017 ubep_property_tests                  one seed again
#include <gtest/gtest.h>

#include "support/case_runner.hpp"
#include "support/cases.hpp"

namespace ubep::test {
namespace {

constexpr int kGroups = 8;
constexpr int kSeedsPerGroup = 50;

class PropertyTest : public testing::TestWithParam<int> {};

TEST_P(PropertyTest, MatchesTheReference) {
  for (const std::uint64_t seed : seeds_of_group(GetParam(), kSeedsPerGroup)) {
    Case c = make_case(seed, {});
    expect(c);
    const CaseResult result = run_case(c, RankKind::threads, seed);
    ASSERT_EQ(result.error, "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PropertyTest, testing::Range(0, kGroups));

class DeterminismTest : public testing::TestWithParam<int> {};

// The same inputs give the same bits, whoever comes late.
TEST_P(DeterminismTest, DelaysDoNotMatter) {
  constexpr int kRepeats = 20;
  Case c = make_case(static_cast<std::uint64_t>(GetParam()), {.max_ranks = 4});
  expect(c);
  const CaseResult first = run_case(c, RankKind::threads);
  ASSERT_EQ(first.error, "");
  for (std::uint64_t delay_seed = 1; delay_seed <= kRepeats; ++delay_seed) {
    const CaseResult again = run_case(c, RankKind::threads, delay_seed);
    ASSERT_EQ(again.error, "");
    ASSERT_EQ(again.hash, first.hash) << "delay seed " << delay_seed;
  }
}

// Paths, stores, lanes, buffers and the order of completion leave the bits alone.
TEST_P(DeterminismTest, TheWayThereDoesNotMatter) {
  constexpr int kVariants = 10;
  Case c = make_case(static_cast<std::uint64_t>(GetParam()) + 100, {.max_ranks = 4});
  expect(c);
  const CaseResult first = run_case(c, RankKind::threads);
  ASSERT_EQ(first.error, "");
  for (std::uint64_t variant = 1; variant <= kVariants; ++variant) {
    vary(c, variant);
    const CaseResult again = run_case(c, RankKind::threads, variant);
    ASSERT_EQ(again.error, "");
    ASSERT_EQ(again.hash, first.hash) << "variant " << variant;
  }
}

// Otherwise the two tests above could not fail.
TEST(HashTest, AnotherCaseHasAnotherHash) {
  Case a = make_case(1, {.max_ranks = 4});
  Case b = make_case(2, {.max_ranks = 4});
  expect(a);
  expect(b);
  EXPECT_NE(run_case(a, RankKind::threads).hash, run_case(b, RankKind::threads).hash);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DeterminismTest, testing::Values(11, 12, 13));

}  // namespace
}  // namespace ubep::test
