// The send plan against brute force: what it says is worked out again choice by choice.
#include "plan/send_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "unit/plan/routings.hpp"

namespace ubep {
namespace {

using test::OwnedRouting;
using test::PlanCase;
using test::random_plan_case;

constexpr std::uint64_t kSeeds = 300;

auto fields(const Entry& e) { return std::tuple(e.token, e.expert, e.k, e.weight); }
auto fields(const RowRef& r) { return std::tuple(r.rank, r.group, r.index); }

// What the source sends to `rank`, in the order of the record.
std::vector<Entry> entries_to(const PlanCase& c, const OwnedRouting& routing, int rank) {
  std::vector<Entry> entries;
  for (std::uint32_t t = 0; t < routing.num_tokens; ++t) {
    for (int k = 0; k < routing.topk; ++k) {
      const std::int32_t e = routing.expert(t, k);
      if (e < 0 || c.experts.rank[static_cast<std::size_t>(e)] != rank) continue;
      entries.push_back(
          {t, static_cast<std::uint16_t>(e), static_cast<std::uint16_t>(k), routing.weight(t, k)});
    }
  }
  if (c.shape.layout == Layout::expert_major) {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.expert < b.expert; });
  }
  return entries;
}

SendPlan plan_of(const PlanCase& c, int self) {
  SendPlan plan;
  make_send_plan(c.sources[static_cast<std::size_t>(self)].view(), c.experts, c.shape, self, plan);
  return plan;
}

TEST(SendPlanTest, RecordsAreSortedAndComplete) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const PlanCase c = random_plan_case(seed);
    const SendPlan plan = plan_of(c, 0);
    std::size_t all = 0;
    for (int r = 0; r < c.ranks; ++r) {
      const std::vector<Entry> want = entries_to(c, c.sources[0], r);
      ASSERT_EQ(plan.to(r).size(), want.size()) << "seed " << seed;
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(fields(plan.to(r)[i]), fields(want[i])) << "seed " << seed << ", rank " << r;
      }
      ASSERT_EQ(plan.owners.contains(r), !want.empty()) << "seed " << seed;
      all += want.size();
    }
    ASSERT_EQ(plan.off.front(), 0U);
    ASSERT_EQ(plan.off.back(), all);
    ASSERT_EQ(plan.entries.size(), all);
  }
}

struct Choice {
  int rank;
  std::int32_t group;
  std::uint32_t index;
  float weight;
};

// The rows of one token in the order of the reduction; `next` counts the rows of each group.
std::vector<Choice> choices_of(const PlanCase& c, std::uint32_t token,
                               std::map<std::pair<int, std::int32_t>, std::uint32_t>& next) {
  const OwnedRouting& routing = c.sources[0];
  std::vector<Choice> choices;
  for (int k = 0; k < routing.topk; ++k) {
    const std::int32_t e = routing.expert(token, k);
    if (e < 0) continue;
    const int rank = c.experts.rank[static_cast<std::size_t>(e)];
    const bool by_expert = c.shape.layout == Layout::expert_major;
    const std::int32_t group = by_expert ? c.experts.local[static_cast<std::size_t>(e)] : 0;
    const bool known = !c.shape.row_per_choice() &&
                       std::any_of(choices.begin(), choices.end(),
                                   [&](const Choice& other) { return other.rank == rank; });
    if (known) continue;
    choices.push_back({rank, group, next[{rank, group}]++, routing.weight(token, k)});
  }
  if (c.shape.reduction == Reduction::per_rank) {
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Choice& a, const Choice& b) { return a.rank < b.rank; });
  }
  return choices;
}

void check_token(const PlanCase& c, const SendPlan& plan, std::uint32_t token,
                 const std::vector<Choice>& want) {
  const std::uint32_t begin = plan.ref_begin[token];
  ASSERT_EQ(plan.ref_begin[token + 1] - begin, want.size());
  bool crosses = false;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const RowRef ref = plan.refs[begin + i];
    ASSERT_EQ(fields(ref), std::tuple(want[i].rank, want[i].group, want[i].index));
    crosses = crosses || want[i].rank != 0;
    if (!c.shape.row_per_choice()) continue;
    ASSERT_EQ(plan.ref_weights[begin + i], want[i].weight);
    if (c.shape.reduction != Reduction::per_rank) continue;
    const bool last = i + 1 == want.size() || want[i + 1].rank != want[i].rank;
    ASSERT_EQ(plan.group_end[begin + i], last ? 1 : 0);
  }
  ASSERT_EQ(plan.crosses[token] != 0, crosses);
}

TEST(SendPlanTest, RowsOfATokenComeInTheOrderOfTheReduction) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const PlanCase c = random_plan_case(seed);
    const SendPlan plan = plan_of(c, 0);
    std::map<std::pair<int, std::int32_t>, std::uint32_t> next;
    for (std::uint32_t t = 0; t < c.sources[0].num_tokens; ++t) {
      check_token(c, plan, t, choices_of(c, t, next));
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", token " << t;
    }
    ASSERT_EQ(plan.ref_weights.size(), c.shape.row_per_choice() ? plan.refs.size() : 0);
    const bool marked = c.shape.row_per_choice() && c.shape.reduction == Reduction::per_rank;
    ASSERT_EQ(plan.group_end.size(), marked ? plan.refs.size() : 0) << "seed " << seed;
    std::uint64_t rows = 0;
    for (const std::uint32_t count : plan.group_rows) rows += count;
    ASSERT_EQ(rows, plan.refs.size()) << "seed " << seed;
  }
}

TEST(SendPlanTest, CountsTheRowsOfEveryGroup) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const PlanCase c = random_plan_case(seed);
    const SendPlan plan = plan_of(c, 0);
    const bool by_expert = c.shape.layout == Layout::expert_major;
    std::vector<std::uint32_t> want(by_expert ? c.experts.rank.size()
                                              : static_cast<std::size_t>(c.ranks));
    for (const RowRef& ref : plan.refs) {
      const std::int32_t first = by_expert ? c.experts.first[ref.rank] : ref.rank;
      ++want[static_cast<std::size_t>(first) + ref.group];
    }
    ASSERT_EQ(plan.group_rows, want) << "seed " << seed;
  }
}

// A handle's plan is filled again and again: nothing of the earlier routing may stay.
TEST(SendPlanTest, MemoryIsReusedWithoutTraces) {
  SendPlan used;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const PlanCase c = random_plan_case(seed);
    make_send_plan(c.sources[0].view(), c.experts, c.shape, 0, used);
    const SendPlan fresh = plan_of(c, 0);
    const auto same = [](const auto& a, const auto& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](const auto& x, const auto& y) { return fields(x) == fields(y); });
    };
    ASSERT_TRUE(same(used.entries, fresh.entries)) << "seed " << seed;
    ASSERT_TRUE(same(used.refs, fresh.refs)) << "seed " << seed;
    ASSERT_EQ(used.off, fresh.off) << "seed " << seed;
    ASSERT_EQ(used.ref_begin, fresh.ref_begin) << "seed " << seed;
    ASSERT_EQ(used.ref_weights, fresh.ref_weights) << "seed " << seed;
    ASSERT_EQ(used.group_end, fresh.group_end) << "seed " << seed;
    ASSERT_EQ(used.group_rows, fresh.group_rows) << "seed " << seed;
    ASSERT_EQ(used.crosses, fresh.crosses) << "seed " << seed;
    ASSERT_EQ(used.owners, fresh.owners) << "seed " << seed;
    ASSERT_EQ(used.num_tokens, fresh.num_tokens) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ubep
