#include "protocol/record.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "plan/send_plan.hpp"
#include "unit/plan/routings.hpp"

namespace ubep {
namespace {

// Rank 0 owns experts 0, 2, 4; rank 1 owns 1, 3, 5.
const ExpertMap& experts() {
  static const ExpertMap map({0, 1, 0, 1, 0, 1}, 2);
  return map;
}

RecordLimits limits(Layout layout) {
  return {.experts = &experts(), .rank = 1, .tokens = 4, .topk = 3, .layout = layout};
}

std::vector<Entry> good_entries(Layout layout) {
  if (layout == Layout::rank_major) {
    return {{0, 3, 0, 0.5F}, {0, 1, 2, 0.5F}, {2, 5, 1, 1.0F}, {3, 5, 0, 1.0F}, {3, 5, 1, 1.0F}};
  }
  return {{0, 1, 2, 0.5F}, {0, 3, 0, 0.5F}, {2, 5, 1, 1.0F}, {3, 5, 0, 1.0F}, {3, 5, 1, 1.0F}};
}

class RecordTest : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override { entries_ = good_entries(GetParam()); }
  OpDifference found() const { return find_corruption(entries_, limits(GetParam())); }
  std::vector<Entry> entries_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, RecordTest,
                         testing::Values(Layout::rank_major, Layout::expert_major),
                         [](const auto& instance) { return std::string(name(instance.param)); });

TEST_P(RecordTest, AGoodRecordPasses) {
  EXPECT_EQ(found().field, nullptr);
  entries_.clear();
  EXPECT_EQ(found().field, nullptr);
}

TEST_P(RecordTest, TokensBeyondTheSourcesAreFound) {
  for (const std::uint32_t token : {4U, std::numeric_limits<std::uint32_t>::max()}) {
    entries_.back().token = token;
    EXPECT_STREQ(found().field, "entry token");
    EXPECT_EQ(found().mine, 4U);
    EXPECT_EQ(found().theirs, token);
  }
}

TEST_P(RecordTest, ChoicesBeyondTopkAreFound) {
  for (const std::uint16_t k : {std::uint16_t{3}, std::uint16_t{0xFFFF}}) {
    entries_.back().k = k;
    EXPECT_STREQ(found().field, "entry k");
    EXPECT_EQ(found().theirs, k);
  }
}

TEST_P(RecordTest, ExpertsThatDoNotExistOrLiveElsewhereAreFound) {
  for (const std::uint16_t expert : {std::uint16_t{6}, std::uint16_t{0xFFFF}, std::uint16_t{4}}) {
    entries_.back().expert = expert;
    EXPECT_STREQ(found().field, "entry expert") << expert;
    EXPECT_EQ(found().theirs, expert);
  }
}

// Neighbours swapped, or one entry twice: rows would be counted differently on both sides.
TEST_P(RecordTest, EntriesOutOfOrderAreFound) {
  for (std::size_t i = 0; i + 1 < entries_.size(); ++i) {
    std::swap(entries_[i], entries_[i + 1]);
    EXPECT_STREQ(found().field, "entry order") << i;
    std::swap(entries_[i], entries_[i + 1]);
  }
  EXPECT_EQ(found().field, nullptr);
  entries_.push_back(entries_.back());
  EXPECT_STREQ(found().field, "entry order");
}

// Any weight is the source's own affair.
TEST_P(RecordTest, WeightsAreNotJudged) {
  entries_[0].weight = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(found().field, nullptr);
}

// rank_major does not care about the order of experts within a token, expert_major is nothing else.
TEST(RecordOrderTest, LayoutsOrderDifferently) {
  EXPECT_STREQ(
      find_corruption(good_entries(Layout::rank_major), limits(Layout::expert_major)).field,
      "entry order");
  EXPECT_STREQ(
      find_corruption(good_entries(Layout::expert_major), limits(Layout::rank_major)).field,
      "entry order");
}

TEST(RecordOrderTest, WhatThePlanSendsPasses) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const test::PlanCase c = test::random_plan_case(seed);
    SendPlan plan;
    make_send_plan(c.sources[0].view(), c.experts, c.shape, 0, plan);
    for (int r = 0; r < c.ranks; ++r) {
      const RecordLimits limit{.experts = &c.experts,
                               .rank = r,
                               .tokens = c.sources[0].num_tokens,
                               .topk = static_cast<std::uint32_t>(c.shape.topk),
                               .layout = c.shape.layout};
      ASSERT_EQ(find_corruption(plan.to(r), limit).field, nullptr) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace ubep
