// A source's own sums must give what the owner's plan gives, from the same records.
#include "plan/push_plan.hpp"

#include <gtest/gtest.h>

#include "plan/send_plan.hpp"
#include "support/random.hpp"
#include "unit/plan/routings.hpp"

namespace ubep {
namespace {

using test::PlanCase;
using test::random_plan_case;

std::size_t at(std::integral auto i) { return static_cast<std::size_t>(i); }

struct Group {
  PlanCase c;
  std::vector<SendPlan> sent;
  std::vector<std::vector<std::uint32_t>> counts;

  explicit Group(std::uint64_t seed) : c(random_plan_case(seed)) {
    c.shape.layout = Layout::expert_major;
    c.shape.topk1 = false;
    for (int q = 0; q < c.ranks; ++q) {
      SendPlan plan;
      make_send_plan(c.sources[at(q)].view(), c.experts, c.shape, q, plan);
      counts.push_back(plan.group_rows);
      sent.push_back(std::move(plan));
    }
  }

  ReceivePlan owner_plan(int owner, const ExpertRoom& room, const RankSet& absent) const {
    ReceivePlan plan;
    plan.sources.resize(at(c.ranks));
    for (int q = 0; q < c.ranks; ++q) {
      const auto entries = sent[at(q)].to(owner);
      if (!absent.contains(q)) {
        plan.sources[at(q)].entries.assign(entries.begin(), entries.end());
      }
      index_rows(c.experts, c.shape, owner, sent[at(q)].num_tokens, plan.sources[at(q)]);
    }
    make_receive_plan(c.experts, {.plan = c.shape, .rank = owner, .room = room}, plan);
    return plan;
  }
};

TEST(PushPlanTest, SourcesAndOwnersAgreeOnEveryBase) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    const Group group(seed);
    test::Random random(seed, 3, 3);
    ExpertRoom room{.alignment = random.pick<std::uint32_t>({1, 1, 4, 64})};
    if (random.one_in(3)) room = {.capacity = static_cast<std::uint32_t>(random.between(1, 99))};
    RankSet absent(group.c.ranks);
    if (random.one_in(3)) absent.insert(random.below(group.c.ranks));
    for (int owner = 0; owner < group.c.ranks; ++owner) {
      const ReceivePlan plan = group.owner_plan(owner, room, absent);
      for (int self = 0; self < group.c.ranks; ++self) {
        if (absent.contains(self)) continue;
        std::vector<std::uint32_t> bases(at(group.c.experts.num_local(owner)));
        sum_bases(group.c.experts, group.counts, room,
                  {.self = self, .owner = owner, .absent = absent}, bases.data());
        for (int e = 0; e < group.c.experts.num_local(owner); ++e) {
          ASSERT_EQ(bases[at(e)], plan.base(self, e))
              << "seed " << seed << ", owner " << owner << ", source " << self << ", expert " << e;
        }
      }
    }
  }
}

TEST(PaddedPlanTest, FullExpertsShowWhatFits) {
  ReceivePlan plan;
  const ExpertMap experts({0, 0}, 1);
  const PlanShape shape{.layout = Layout::expert_padded, .reduction = Reduction::exact, .topk = 1};
  plan.sources.resize(1);
  for (std::uint32_t t = 0; t < 5; ++t) plan.sources[0].entries.push_back({t, 1, 0, 1.0F});
  index_rows(experts, shape, 0, 5, plan.sources[0]);
  make_receive_plan(experts, {.plan = shape, .room = {.capacity = 3}}, plan);
  EXPECT_EQ(plan.num_rows, 6);
  EXPECT_EQ(plan.expert_offsets, (std::vector<std::int32_t>{0, 3, 6}));
  EXPECT_EQ(plan.expert_counts, (std::vector<std::int32_t>{0, 3}));
  EXPECT_EQ(plan.overflow, 5U);
}

// Rows without a place are in neither list; places without a row show that nobody sent one.
TEST(PaddedPlanTest, ListsOfRowsLeaveOutWhatHasNoPlace) {
  ReceivePlan plan;
  const ExpertMap experts({0, 0}, 1);
  const PlanShape shape{.layout = Layout::expert_padded, .reduction = Reduction::exact, .topk = 2};
  plan.sources.resize(1);
  plan.sources[0].entries = {{1, 0, 1, 0.5F}, {0, 1, 0, 1.0F}, {1, 1, 0, 2.0F}, {2, 1, 1, 3.0F}};
  index_rows(experts, shape, 0, 3, plan.sources[0]);
  make_receive_plan(experts, {.plan = shape, .room = {.capacity = 2}}, plan);
  std::vector<float> weights;
  list_row_weights(plan, 2, weights);
  EXPECT_EQ(weights, (std::vector<float>{0.5F, 0, 1, 2}));
  std::vector<std::int32_t> choices;
  list_row_choices(plan, 2, choices);
  EXPECT_EQ(choices, (std::vector<std::int32_t>{1, -1, 0, 0}));
}

TEST(EveryTokenTest, TokensWithoutAnExpertHereAreRowsToo) {
  SourceRows source;
  const ExpertMap experts({0, 1}, 2);
  const PlanShape shape{.every_token = true, .topk = 2};
  source.entries = {{1, 0, 0, 0.5F}, {1, 0, 1, 0.25F}};
  index_rows(experts, shape, 0, 3, source);
  EXPECT_EQ(source.row_token, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(source.row_entry, (std::vector<std::uint32_t>{0, 0, 2, 2}));
  EXPECT_EQ(source.group_begin, (std::vector<std::uint32_t>{0, 3}));
}

}  // namespace
}  // namespace ubep
