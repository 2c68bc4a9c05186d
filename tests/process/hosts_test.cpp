// Ranks that take each other for ranks of other hosts: UCX over loopback between them, shared
// memory among those of one.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/case_runner.hpp"
#include "support/cases.hpp"
#include "support/fabric_groups.hpp"
#include "support/ranks.hpp"

namespace ubep::test {
namespace {

constexpr int kGroups = 2;
constexpr int kSeedsPerGroup = 10;

class RandomHostsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!has_ucx()) GTEST_SKIP() << "there is no UCX";
  }
};

TEST_P(RandomHostsTest, MatchesTheReference) {
  std::size_t operations = 0;
  for (const std::uint64_t seed : seeds_of_group(GetParam(), kSeedsPerGroup)) {
    Case c = make_case(seed, {.max_ranks = 6});
    std::vector<int> host_of;
    for (int r = 0; r < c.num_ranks; ++r) host_of.push_back(host_of_rank(r));
    Random random(seed, 53, 0);
    spread_over_hosts(c, host_of, random);
    expect(c);
    const CaseResult result = run_case(c, RankKind::hosts, seed);
    ASSERT_EQ(result.error, "") << "seed " << seed;
    operations += c.operations.size();
  }
  std::printf("%zu dispatches and their ends, with random delays\n", operations);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomHostsTest, testing::Range(0, kGroups));

}  // namespace
}  // namespace ubep::test
