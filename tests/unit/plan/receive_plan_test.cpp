// The receive plan against brute force, on what the sources' plans send; and that both sides number
// rows alike.
#include "plan/receive_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "unit/plan/routings.hpp"

namespace ubep {
namespace {

using test::PlanCase;
using test::random_plan_case;

constexpr std::uint64_t kSeeds = 300;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// One choice as it arrives at its owner.
struct Arrival {
  int source;
  std::uint32_t token;
  int k;
  std::int32_t local;
  float weight;
};

std::vector<Arrival> arrivals_at(const PlanCase& c, int rank) {
  std::vector<Arrival> arrivals;
  for (int q = 0; q < c.ranks; ++q) {
    const test::OwnedRouting& routing = c.sources[at(q)];
    for (std::uint32_t t = 0; t < routing.num_tokens; ++t) {
      for (int k = 0; k < routing.topk; ++k) {
        const std::int32_t e = routing.expert(t, k);
        if (e < 0 || c.experts.rank[at(e)] != rank) continue;
        arrivals.push_back({q, t, k, c.experts.local[at(e)], routing.weight(t, k)});
      }
    }
  }
  return arrivals;
}

struct Received {
  PlanCase c;
  std::vector<SendPlan> sent;  // [ranks]
  int rank = 0;
  ReceiveShape shape;
  ReceivePlan plan;
};

Received receive(std::uint64_t seed) {
  Received r{.c = random_plan_case(seed)};
  test::Random random(seed, 1, 1);
  r.rank = random.below(r.c.ranks);
  for (int q = 0; q < r.c.ranks; ++q) {
    SendPlan plan;
    make_send_plan(r.c.sources[at(q)].view(), r.c.experts, r.c.shape, q, plan);
    r.sent.push_back(plan);
  }
  const bool by_expert = r.c.shape.layout != Layout::rank_major;
  r.shape = {.plan = r.c.shape,
             .rank = r.rank,
             .room = {.alignment = by_expert ? random.pick<std::uint32_t>({1, 2, 7, 64}) : 1},
             .want_pairs = !by_expert && random.one_in(2)};
  r.plan.sources.resize(at(r.c.ranks));
  for (int q = 0; q < r.c.ranks; ++q) {
    const auto entries = r.sent[at(q)].to(r.rank);
    r.plan.sources[at(q)].entries.assign(entries.begin(), entries.end());
    index_rows(r.c.experts, r.c.shape, r.rank, r.sent[at(q)].num_tokens, r.plan.sources[at(q)]);
  }
  make_receive_plan(r.c.experts, r.shape, r.plan);
  return r;
}

// Rows of rank_major: (source, token) once, or every choice with topk1.
std::vector<std::vector<Arrival>> rows_of(const Received& r) {
  std::vector<std::vector<Arrival>> rows;
  for (const Arrival& arrival : arrivals_at(r.c, r.rank)) {
    const bool joins = !r.c.shape.topk1 && !rows.empty() &&
                       rows.back()[0].source == arrival.source &&
                       rows.back()[0].token == arrival.token;
    if (!joins) rows.emplace_back();
    rows.back().push_back(arrival);
  }
  return rows;
}

void check_columns(const Received& r, std::size_t row, const std::vector<Arrival>& choices) {
  const std::size_t columns = r.c.shape.topk1 ? 1 : at(r.c.shape.topk);
  std::vector<std::int32_t> ids(columns, -1);
  std::vector<float> weights(columns, 0.0F);
  for (const Arrival& choice : choices) {
    const std::size_t column = r.c.shape.topk1 ? 0 : at(choice.k);
    ids[column] = choice.local;
    weights[column] = choice.weight;
  }
  for (std::size_t i = 0; i < columns; ++i) {
    ASSERT_EQ(r.plan.topk_idx[row * columns + i], ids[i]) << "row " << row;
    ASSERT_EQ(r.plan.topk_weights[row * columns + i], weights[i]) << "row " << row;
  }
}

void check_rank_major(const Received& r) {
  const auto rows = rows_of(r);
  ASSERT_EQ(r.plan.num_rows, std::ssize(rows));
  ASSERT_EQ(r.plan.groups, 1);
  std::vector<std::vector<std::int32_t>> of_expert(at(r.c.experts.num_local(r.rank)));
  std::vector<std::int32_t> counts(at(r.c.ranks));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_columns(r, i, rows[i]);
    ++counts[at(rows[i][0].source)];
    for (const Arrival& choice : rows[i]) {
      of_expert[at(choice.local)].push_back(static_cast<std::int32_t>(i));
    }
  }
  ASSERT_EQ(r.plan.src_counts, counts);
  std::vector<std::int32_t> list;
  for (std::size_t e = 0; e < of_expert.size(); ++e) {
    ASSERT_EQ(r.plan.expert_offsets[e], std::ssize(list));
    ASSERT_EQ(r.plan.expert_counts[e], std::ssize(of_expert[e]));
    list.insert(list.end(), of_expert[e].begin(), of_expert[e].end());
  }
  ASSERT_EQ(r.plan.expert_offsets.back(), std::ssize(list));
  ASSERT_EQ(r.plan.expert_rows, list);
}

TEST(ReceivePlanTest, RankMajorMatchesBruteForce) {
  int seen = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Received r = receive(seed);
    if (r.c.shape.layout != Layout::rank_major) continue;
    ++seen;
    check_rank_major(r);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(seen, 50);
}

// Where the rows of (source, token, k) must lie.
void check_expert_major(const Received& r) {
  std::vector<Arrival> arrivals = arrivals_at(r.c, r.rank);
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.local < b.local; });
  const int num_local = r.c.experts.num_local(r.rank);
  ASSERT_EQ(r.plan.groups, num_local);
  std::size_t next = 0;
  std::int32_t row = 0;
  std::vector<std::uint32_t> used(at(r.c.ranks) * at(num_local));
  for (std::int32_t e = 0; e < num_local; ++e) {
    ASSERT_EQ(r.plan.expert_offsets[at(e)], row);
    const std::size_t first = next;
    for (; next < arrivals.size() && arrivals[next].local == e; ++next, ++row) {
      const int q = arrivals[next].source;
      ASSERT_EQ(static_cast<std::int32_t>(r.plan.base(q, e) + used[at(q * num_local + e)]++), row);
    }
    ASSERT_EQ(r.plan.expert_counts[at(e)], static_cast<std::int32_t>(next - first));
    while (static_cast<std::uint32_t>(row) % r.shape.room.alignment != 0) ++row;
  }
  ASSERT_EQ(r.plan.num_rows, row);
  ASSERT_EQ(r.plan.expert_offsets.back(), row);
}

TEST(ReceivePlanTest, ExpertMajorMatchesBruteForce) {
  int seen = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Received r = receive(seed);
    if (r.c.shape.layout != Layout::expert_major) continue;
    ++seen;
    check_expert_major(r);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(seen, 50);
}

// The source finds row `index` of (rank, group) at the owner's base + index: the row that the owner
// made of that very token.
TEST(ReceivePlanTest, SourceAndOwnerNumberRowsAlike) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Received r = receive(seed);
    for (int q = 0; q < r.c.ranks; ++q) {
      const SendPlan& sent = r.sent[at(q)];
      const SourceRows& source = r.plan.sources[at(q)];
      std::vector<bool> hit(source.num_rows());
      for (std::uint32_t t = 0; t < sent.num_tokens; ++t) {
        for (std::uint32_t i = sent.ref_begin[t]; i < sent.ref_begin[t + 1]; ++i) {
          const RowRef ref = sent.refs[i];
          if (ref.rank != r.rank) continue;
          const std::uint32_t row = source.group_begin[ref.group] + ref.index;
          ASSERT_LT(row, source.group_begin[ref.group + 1U]) << "seed " << seed;
          ASSERT_EQ(source.row_token[row], t) << "seed " << seed;
          ASSERT_FALSE(hit[row]) << "seed " << seed;
          hit[row] = true;
        }
      }
      ASSERT_EQ(std::count(hit.begin(), hit.end(), false), 0) << "seed " << seed;
    }
  }
}

// With owner weighting every entry knows its place in the index list.
TEST(ReceivePlanTest, PairsPointAtTheEntriesOwnRow) {
  int seen = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Received r = receive(seed);
    if (!r.shape.want_pairs) continue;
    std::vector<bool> hit(r.plan.expert_rows.size());
    for (int q = 0; q < r.c.ranks; ++q) {
      const SourceRows& source = r.plan.sources[at(q)];
      ASSERT_EQ(r.plan.pairs[at(q)].size(), source.entries.size());
      for (std::uint32_t row = 0; row < source.num_rows(); ++row) {
        for (std::uint32_t j = source.row_entry[row]; j < source.row_entry[row + 1]; ++j, ++seen) {
          const std::uint32_t place = r.plan.pairs[at(q)][j];
          ASSERT_EQ(r.plan.expert_rows[place], static_cast<std::int32_t>(r.plan.base(q, 0) + row));
          const std::int32_t local = r.c.experts.local[source.entries[j].expert];
          ASSERT_GE(static_cast<std::int32_t>(place), r.plan.expert_offsets[at(local)]);
          ASSERT_LT(static_cast<std::int32_t>(place), r.plan.expert_offsets[at(local) + 1]);
          ASSERT_FALSE(hit[place]) << "seed " << seed;
          hit[place] = true;
        }
      }
    }
  }
  EXPECT_GT(seen, 100);
}

// An owner without experts has nothing to place and no bases to publish.
TEST(ReceivePlanTest, NoLocalExperts) {
  const ExpertMap experts({0, 0}, 2);
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    const PlanShape shape{.layout = layout, .topk = 2};
    ReceivePlan plan;
    plan.sources.resize(2);
    for (SourceRows& source : plan.sources) index_rows(experts, shape, 1, 0, source);
    make_receive_plan(experts, {.plan = shape, .rank = 1}, plan);
    EXPECT_EQ(plan.num_rows, 0);
    EXPECT_TRUE(plan.expert_counts.empty());
    EXPECT_EQ(plan.expert_offsets, std::vector<std::int32_t>{0});
    EXPECT_EQ(plan.bases.empty(), layout == Layout::expert_major);
  }
}

}  // namespace
}  // namespace ubep
