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

// What a case of one host does, between hosts: most operations are relayed.
void spread(Case& c) {
  Random random(c.seed, 53, 0);
  c.options.push = true;
  c.options.bsp = false;
  c.options.protocol = Protocol::automatic;
  c.options.checksum_rows = 0;
  std::vector<int> host_of;
  for (int r = 0; r < c.num_ranks; ++r) host_of.push_back(host_of_rank(r));
  c.options.max_topk = std::max(c.options.max_topk, host_of.back() + 1);  // for allgather
  for (Operation& op : c.operations) {
    Problem& problem = op.problem;
    op.bsp = false;
    problem.host_of = host_of;
    const bool relays = !problem.topk1 && !problem.every_token && !random.one_in(4);
    if (problem.layout == Layout::rank_major) {
      problem.reduction = relays || problem.every_token || random.one_in(2) ? Reduction::automatic
                                                                            : Reduction::per_rank;
    }
    for (std::size_t r = 0; r < op.local.size(); ++r) {
      LocalChoice& local = op.local[r];
      local.by_expert = false;
      if (op.origin >= 0) {
        const Operation& origin = c.operations[static_cast<std::size_t>(op.origin)];
        problem.reduction = origin.problem.reduction;
        local.options = origin.local[r].options;
        continue;
      }
      local.options.by_expert = local.options.mapped_view = false;
      local.options.reduction = problem.reduction;
      if (problem.every_token) continue;
      local.options.path = relays             ? (random.one_in(2) ? Path::automatic : Path::relay)
                           : random.one_in(2) ? Path::push
                                              : Path::pull;
    }
  }
}

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
    spread(c);
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
