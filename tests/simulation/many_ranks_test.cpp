// The engine with more ranks than a communicator may have: sets of ranks are longer than one word.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "api/checks.hpp"
#include "protocol/segment_layout.hpp"
#include "simulation/sim_run.hpp"
#include "support/random.hpp"
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
  return c;
}

struct Choice {
  Path path;
  bool mapped;
  Protocol protocol = Protocol::automatic;
};

// Sources that push sum their bases themselves where memory is mapped, and read tables elsewhere.
Setup make_many_ranks_setup(std::uint64_t seed, const Choice& choice) {
  using sim::kNanosecond;
  Setup setup;
  setup.calls = make_many_ranks_case(seed, choice.path);
  setup.calls.options.protocol = choice.protocol;
  setup.most_counts = choice.mapped ? 16 * 1024 : 0;
  setup.tile_bytes = 256;
  setup.starts.assign(kRanks, 0);
  sim::WorldOptions& world = setup.world;
  world.ranks = kRanks;
  world.mapped = choice.mapped;
  world.has_links = false;
  world.seed = seed;
  world.hesitation = 50 * kNanosecond;
  world.memory.weak = true;
  world.memory.unit = 512;
  world.memory.delay = 1000 * kNanosecond;
  world.pod.tiers = {{"all", kRanks, 100 * kNanosecond, 0}};
  world.pod.jitter = 1000 * kNanosecond;
  world.pod.lane.poll = world.pod.lane.issue = 10 * kNanosecond;
  const GroupConfig config = make_config(setup.calls.options, kRanks);
  for (int r = 0; r < kRanks; ++r) {
    world.memory.segment_bytes.push_back(SegmentLayout(config, r).bytes());
    if (config.push) world.memory.inbox_bytes.push_back(SegmentLayout(config, r).inbox_bytes());
  }
  return setup;
}

class ManyRanksTest : public testing::TestWithParam<Choice> {};

INSTANTIATE_TEST_SUITE_P(Paths, ManyRanksTest,
                         testing::Values(Choice{Path::pull, false}, Choice{Path::push, false},
                                         Choice{Path::pull, true}, Choice{Path::push, true},
                                         Choice{Path::push, false, Protocol::token_flag_512},
                                         Choice{Path::push, true, Protocol::sentinel}),
                         [](const auto& test) {
                           const Protocol protocol = test.param.protocol;
                           return std::string(name(test.param.path)) +
                                  (test.param.mapped ? "_mapped" : "_fetched") +
                                  (protocol == Protocol::automatic  ? ""
                                   : protocol == Protocol::sentinel ? "_sp"
                                                                    : "_tff");
                         });

TEST_P(ManyRanksTest, MatchTheReference) {
  ASSERT_EQ(run(make_many_ranks_setup(1, GetParam())).error, "");
}

TEST_P(ManyRanksTest, SurvivorsMatchAndAgree) {
  auto setup = make_many_ranks_setup(2, GetParam());
  setup.world.fates = {{.rank = kRanks - 1, .call = 300}};
  const Result result = run(setup, true);
  ASSERT_EQ(result.error, "");
  const auto dies = [](const std::string& line) { return line.ends_with("dies"); };
  ASSERT_TRUE(std::any_of(result.transcript.begin(), result.transcript.end(), dies));
}

}  // namespace
}  // namespace ubep::test
