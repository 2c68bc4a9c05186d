// What a gateway lists must be what the source's ranks would have got one by one.
#include "plan/relay_plan.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "plan/receive_plan.hpp"
#include "support/random.hpp"
#include "unit/plan/routings.hpp"

namespace ubep {
namespace {

using test::PlanCase;
using test::random_plan_case;

std::size_t at(std::integral auto i) { return static_cast<std::size_t>(i); }

HostMap random_hosts(int ranks, test::Random& random) {
  std::vector<int> host_of(1, 0);
  while (static_cast<int>(host_of.size()) < ranks) {
    host_of.push_back(host_of.back() + random.below(2));
  }
  return HostMap(host_of);
}

struct Sent {
  PlanCase c;
  int self;
  HostMap hosts;
  SendPlan plan;

  explicit Sent(std::uint64_t seed) : c(random_plan_case(seed)) {
    test::Random random(seed, 5, 0);
    c.shape.layout = Layout::rank_major;
    c.shape.topk1 = c.shape.every_token = false;
    self = random.below(c.ranks);
    hosts = random_hosts(c.ranks, random);
    make_send_plan(c.sources[at(self)].view(), c.experts, c.shape, self, plan);
  }
};

TEST(RelayPlanTest, ATokenIsListedOnceForEachHostThatHasRowsOfIt) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Sent sent(seed);
    std::vector<std::set<std::uint32_t>> expected(at(sent.hosts.num_hosts()));
    for (int r = 0; r < sent.c.ranks; ++r) {
      if (r == sent.self) continue;
      for (const Entry& entry : sent.plan.to(r)) {
        expected[at(sent.hosts.host_of(r))].insert(entry.token);
      }
    }
    HostTokens tokens;
    list_host_tokens(sent.plan, sent.hosts, sent.self, tokens);
    ASSERT_EQ(tokens.tokens.size(), expected.size()) << seed;
    for (std::size_t h = 0; h < expected.size(); ++h) {
      const std::vector<std::uint32_t> want(expected[h].begin(), expected[h].end());
      ASSERT_EQ(tokens.tokens[h], want) << "seed " << seed << ", host " << h;
      for (std::uint32_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(tokens.place[h][want[i]], i) << "seed " << seed;
      }
    }
  }
}

TEST(RelayPlanTest, AGatewayFindsTheRowsThatEachRankHas) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Sent sent(seed);
    for (int h = 0; h < sent.hosts.num_hosts(); ++h) {
      const int first = sent.hosts.first(h);
      const int end = sent.hosts.end(h);
      const std::span<const std::uint32_t> off =
          std::span(sent.plan.off).subspan(at(first), at(end - first) + 1);
      RelayedRows relayed;
      list_relayed_rows(std::span(sent.plan.entries).subspan(off.front(), off.back() - off.front()),
                        off, first, relayed);
      // By token, what each rank's own plan says.
      std::map<std::uint32_t, std::vector<std::pair<int, std::uint32_t>>> expected;
      for (int r = first; r < end; ++r) {
        SourceRows rows;
        const auto entries = sent.plan.to(r);
        rows.entries.assign(entries.begin(), entries.end());
        index_rows(sent.c.experts, sent.c.shape, r, sent.plan.num_tokens, rows);
        for (std::uint32_t i = 0; i < rows.num_rows(); ++i) {
          expected[rows.row_token[i]].push_back({r, i});
        }
      }
      EXPECT_EQ(relayed.first, off.front());
      ASSERT_EQ(relayed.num_tokens(), expected.size()) << "seed " << seed;
      ASSERT_LE(relayed.num_tokens(), off.back() - off.front()) << "has no room";
      std::uint32_t token = 0;
      for (const auto& [id, rows] : expected) {
        std::vector<std::pair<int, std::uint32_t>> found;
        for (std::uint32_t i = relayed.begin[token]; i < relayed.begin[token + 1]; ++i) {
          found.emplace_back(relayed.rows[i].rank, relayed.rows[i].index);
        }
        ASSERT_EQ(found, rows) << "seed " << seed << ", token " << id;
        ++token;
      }
    }
  }
}

}  // namespace
}  // namespace ubep
