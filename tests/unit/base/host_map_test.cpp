#include "base/host_map.hpp"

#include <gtest/gtest.h>

#include <set>

namespace ubep {
namespace {

TEST(HostMapTest, RunsOfRanksAreHosts) {
  const HostMap hosts({7, 7, 3, 3, 3, 7});
  EXPECT_FALSE(hosts.empty());
  ASSERT_EQ(hosts.num_hosts(), 3);  // the last rank shares a host with the first, and counts apart
  EXPECT_EQ(hosts.first(1), 2);
  EXPECT_EQ(hosts.end(1), 5);
  EXPECT_EQ(hosts.host_of(5), 2);
  EXPECT_TRUE(hosts.same(2, 4));
  EXPECT_FALSE(hosts.same(0, 5));
}

TEST(HostMapTest, OneHostOrNone) {
  EXPECT_TRUE(HostMap().empty());
  EXPECT_EQ(HostMap(4).num_hosts(), 1);
  EXPECT_EQ(HostMap(4).end(0), 4);
}

TEST(HostMapTest, GatewaysHaveTheSamePlaceOnTheirHost) {
  const HostMap hosts({0, 0, 0, 1, 1, 1});
  for (int place = 0; place < 3; ++place) {
    EXPECT_EQ(hosts.gateway(place, 1, 0), 3 + place);
    EXPECT_EQ(hosts.gateway(3 + place, 0, 0), place);
  }
}

TEST(HostMapTest, HostsMayHaveDifferentNumbersOfRanks) {
  const HostMap hosts({0, 1, 1, 1, 1, 1});
  for (int source = 1; source < 6; ++source) EXPECT_EQ(hosts.gateway(source, 0, 0), 0);
  std::set<int> reached;
  for (int shift = 0; shift < 5; ++shift) reached.insert(hosts.gateway(0, 1, shift));
  EXPECT_EQ(reached, std::set<int>({1, 2, 3, 4, 5}));  // so one that lives is found
}

}  // namespace
}  // namespace ubep
