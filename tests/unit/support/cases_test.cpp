// The generator itself: every case keeps the rules of the interface, and together they reach
// everything that they are meant to reach.
#include "support/cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

TEST(CasesTest, OneSeedGivesOneCase) {
  const Case a = make_case(7, {});
  const Case b = make_case(7, {});
  ASSERT_EQ(a.operations.size(), b.operations.size());
  for (std::size_t i = 0; i < a.operations.size(); ++i) {
    for (int rank = 0; rank < a.num_ranks; ++rank) {
      EXPECT_EQ(a.operations[i].problem.ranks[index(rank)].x,
                b.operations[i].problem.ranks[index(rank)].x);
      EXPECT_EQ(a.operations[i].problem.ranks[index(rank)].topk_idx,
                b.operations[i].problem.ranks[index(rank)].topk_idx);
    }
  }
  EXPECT_NE(describe(a), describe(make_case(8, {})));
}

TEST(CasesTest, NoRankHasMoreTokensThanDeclared) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Case c = make_case(seed, {});
    for (const Operation& operation : c.operations) {
      const Problem& problem = operation.problem;
      for (const RankInput& input : problem.ranks) {
        ASSERT_LE(input.tokens, c.options.max_tokens);
        ASSERT_EQ(std::ssize(input.topk_idx), input.tokens * problem.topk);
      }
    }
  }
}

TEST(CasesTest, LeasesFitTheSlots) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Case c = make_case(seed, {});
    std::set<int> open;
    int started = 0;
    for (const Event& event : c.events) {
      if (event.dispatch) {
        ASSERT_EQ(event.operation, started++);
        ASSERT_EQ(open.count(event.operation - c.options.slots), 0U);
        open.insert(event.operation);
        ASSERT_LE(std::ssize(open), c.options.slots);
      } else {
        ASSERT_EQ(open.erase(event.operation), 1U);
      }
    }
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(started, std::ssize(c.operations));
    EXPECT_GT(started, 2 * c.options.slots);
  }
}

void note_case(const Case& c, std::map<std::string, int>& seen) {
  const std::vector<std::int32_t>& map = c.options.expert_rank;
  seen["one rank"] += c.num_ranks == 1;
  seen["more than eight ranks"] += c.num_ranks > 8;
  seen["no room for tokens"] += c.options.max_tokens == 0;
  seen["experts not divisible"] += c.options.num_experts % c.num_ranks != 0;
  seen["idle owner"] +=
      !map.empty() && std::set(map.begin(), map.end()).size() < index(c.num_ranks);
  seen["one slot"] += c.options.slots == 1;
  seen["four slots"] += c.options.slots == 4;
}

void note_problem(const Problem& problem, std::map<std::string, int>& seen) {
  std::int64_t tokens = 0;
  for (const RankInput& input : problem.ranks) {
    tokens += input.tokens;
    seen["rank without tokens"] += input.tokens == 0;
    for (std::size_t i = 0; i < input.topk_idx.size(); ++i) {
      seen["no expert"] += input.topk_idx[i] < 0;
      const bool same_token = i % index(problem.topk) != 0;
      seen["repeated expert"] +=
          same_token && input.topk_idx[i] >= 0 && input.topk_idx[i] == input.topk_idx[i - 1];
    }
  }
  seen["nobody has tokens"] += tokens == 0;
  seen["top-k above 12"] += problem.topk > 12;
  seen["odd hidden"] += problem.hidden % 2;
  seen[std::string("dtype ") + ubep::name(problem.dtype)] += 1;
  seen[std::string("quant ") + ubep::name(problem.quant)] += 1;
  seen["payloads"] += !problem.payloads.empty();
  seen["payloads behind plain rows"] += !problem.payloads.empty() && problem.quant == Quant::none;
  seen["outputs of another shape"] += problem.own_output;
  seen["rows are added"] += problem.added != 0;
  seen["unweighted"] += problem.unweighted;
  seen["alignment"] += problem.expert_alignment > 1;
  seen["every token"] += problem.every_token;
  seen[std::string("layout ") + ubep::name(problem.layout)] += 1;
  seen["topk1"] += problem.topk1;
  seen["per_rank expert_major"] +=
      problem.layout == Layout::expert_major && problem.reduction == Reduction::per_rank;
}

void note_local(const LocalChoice& local, std::map<std::string, int>& seen) {
  seen[std::string("path ") + ubep::name(local.options.path)] += 1;
  seen["in_place"] += local.options.in_place;
  seen["contiguous"] += local.options.contiguous;
  seen["mapped_view"] += local.options.mapped_view;
  seen["owner weighting"] += local.options.weighting == Weighting::owner;
  seen["drive " + std::to_string(static_cast<int>(local.drive))] += 1;
  seen["input()"] += local.input;
  seen["own y"] += local.own_y;
  seen["strided x"] += local.x_gap > 0 && !local.input;
  seen["finish late"] += local.finish_late;
}

TEST(CasesTest, TogetherTheyReachEverything) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Case c = make_case(seed, {});
    note_case(c, seen);
    seen[std::string("protocol ") + ubep::name(c.options.protocol)] += 1;
    for (const Operation& operation : c.operations) {
      note_problem(operation.problem, seen);
      seen["release"] += operation.release;
      seen["cached"] += operation.cached >= 0;
      seen["cached and handle are one"] += operation.cached == operation.handle;
      for (const LocalChoice& local : operation.local) note_local(local, seen);
    }
  }
  for (const auto& [what, count] : seen) EXPECT_GT(count, 2) << what;
}

TEST(CasesTest, VaryingLeavesTheInputsAlone) {
  Case c = make_case(5, {});
  const Case before = c;
  vary(c, 99);
  bool another_way = false;
  for (std::size_t i = 0; i < c.operations.size(); ++i) {
    EXPECT_EQ(c.operations[i].problem.ranks[0].x, before.operations[i].problem.ranks[0].x);
    EXPECT_EQ(c.operations[i].local[0].options.layout, before.operations[i].problem.layout);
    another_way =
        another_way || c.operations[i].local[0].drive != before.operations[i].local[0].drive;
  }
  EXPECT_TRUE(another_way);
}

}  // namespace
}  // namespace ubep::test
