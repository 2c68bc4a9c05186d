// The random cases of the property tests with a process per rank.
//
//   UBEP_SEED=17 ubep_process_tests --gtest_filter='*Random*'      one seed again
//   UBEP_SEEDS=3000 ubep_process_tests --gtest_filter='*Random*'   10^5 operations, ten minutes
#include <gtest/gtest.h>

#include <cstdio>

#include "support/case_runner.hpp"
#include "support/cases.hpp"

namespace ubep::test {
namespace {

constexpr int kGroups = 4;
constexpr int kSeedsPerGroup = 15;

class RandomProcessTest : public testing::TestWithParam<int> {};

TEST_P(RandomProcessTest, MatchesTheReference) {
  std::size_t operations = 0;
  for (const std::uint64_t seed : seeds_of_group(GetParam(), kSeedsPerGroup)) {
    Case c = make_case(seed, {.max_ranks = 6});
    expect(c);
    const CaseResult result = run_case(c, RankKind::processes, seed);
    ASSERT_EQ(result.error, "") << "seed " << seed;
    operations += c.operations.size();
  }
  std::printf("%zu dispatches and their ends, with random delays\n", operations);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomProcessTest, testing::Range(0, kGroups));

// Threads and processes give the same bits.
TEST(RankKindTest, RanksMayBeThreadsOrProcesses) {
  for (const std::uint64_t seed : {21, 22, 23, 24}) {
    Case c = make_case(seed, {.max_ranks = 4});
    expect(c);
    const CaseResult threads = run_case(c, RankKind::threads);
    const CaseResult processes = run_case(c, RankKind::processes);
    ASSERT_EQ(threads.error, "");
    ASSERT_EQ(processes.error, "");
    EXPECT_EQ(threads.hash, processes.hash) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ubep::test
