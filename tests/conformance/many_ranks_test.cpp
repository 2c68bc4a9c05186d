// The engine with more ranks than a communicator may have: sets of ranks are longer than one word.
#include <gtest/gtest.h>

#include <string>

#include "conformance/staged_run.hpp"
#include "ubep/types.hpp"

namespace ubep::test {
namespace {

constexpr int kRanks = 70;

// One operation for each of the two layouts, the first under way while the second starts.
Case make_many_ranks_case(std::uint64_t seed, Path path) {
  Random random(seed, 70, 0);
  Case c;
  c.seed = seed;
  c.num_ranks = kRanks;
  c.num_handles = 2;
  c.options.num_experts = 90;  // some ranks own one, some two
  c.options.max_tokens = 3;
  c.options.max_hidden = 5;
  c.options.max_topk = 4;
  c.options.push = path == Path::push;
  for (int rank = 0; rank < kRanks; ++rank) {
    c.stores.push_back(rank % 2 == 0 ? Store::near : Store::far);
  }
  for (const Layout layout : {Layout::expert_major, Layout::rank_major}) {
    Operation operation;
    Problem& problem = operation.problem;
    problem.num_experts = c.options.num_experts;
    problem.hidden = c.options.max_hidden;
    problem.topk = c.options.max_topk;
    problem.layout = layout;
    problem.function = ExpertFunction::scaled;
    problem.ranks.resize(kRanks);
    fill_inputs(problem, c.options.max_tokens, random);
    operation.handle = static_cast<int>(c.operations.size());
    operation.local.resize(kRanks);
    for (LocalChoice& local : operation.local) local.options = {.layout = layout, .path = path};
    c.operations.push_back(operation);
  }
  c.events = {{true, 0}, {true, 1}, {false, 0}, {false, 1}};
  expect(c);
  return c;
}

class ManyRanksTest : public testing::TestWithParam<Path> {};

INSTANTIATE_TEST_SUITE_P(Paths, ManyRanksTest, testing::Values(Path::pull, Path::push),
                         [](const auto& test) { return std::string(name(test.param)); });

// Sources that push sum their bases themselves with an odd seed, and read tables with an even one.
TEST_P(ManyRanksTest, MatchTheReference) {
  for (const std::uint64_t seed : {1, 2}) {
    ASSERT_EQ(run_staged(make_many_ranks_case(seed, GetParam()), {}), "");
  }
}

TEST_P(ManyRanksTest, SurvivorsMatchAndAgree) {
  for (const std::uint64_t seed : {3, 4}) {
    const Case c = make_many_ranks_case(seed, GetParam());
    ASSERT_EQ(run_staged(c, {.a_rank_dies = true, .victim = kRanks - 1}), "");
  }
}

}  // namespace
}  // namespace ubep::test
