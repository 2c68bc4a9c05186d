#include "plan/roles.hpp"

#include <gtest/gtest.h>

namespace ubep {
namespace {

constexpr RoleLoad kLoad{.peers = 63, .sent = 1000, .received = 1000, .row_bytes = 8192};

TEST(SplitLanesTest, OneLaneHasAllRolesAndTwoShareThem) {
  const Roles one = split_lanes(1, kLoad, {});
  EXPECT_EQ(one.count + one.send + one.receive, 1);
  EXPECT_EQ(one.count, 1);
  const Roles two = split_lanes(2, kLoad, {});
  EXPECT_EQ(two.count, 1);
  EXPECT_EQ(two.send, 1);
}

TEST(SplitLanesTest, UsesAllLanesAndGivesEachRoleWithWorkOne) {
  for (int lanes = 3; lanes <= 64; ++lanes) {
    const Roles r = split_lanes(lanes, kLoad, {});
    EXPECT_EQ(r.count + r.send + r.receive, lanes);
    EXPECT_GE(r.count, 1);
    EXPECT_GE(r.send, 1);
    EXPECT_GE(r.receive, 1);
  }
}

TEST(SplitLanesTest, NobodyReceivesWhereNothingIsCopied) {
  RoleLoad load = kLoad;
  load.received = 0;
  EXPECT_EQ(split_lanes(16, load, {}).receive, 0);
  EXPECT_EQ(split_lanes(16, {}, {}).receive, 0);
}

// Lanes go where the time goes: as many times more senders as sending takes longer.
TEST(SplitLanesTest, FollowsTheRates) {
  const Roles even = split_lanes(41, kLoad, {.issue_ns = 0, .send_ns = 0.1, .receive_ns = 0.1});
  EXPECT_EQ(even.send, 20);
  EXPECT_EQ(even.receive, 20);
  const Roles slow = split_lanes(41, kLoad, {.issue_ns = 0, .send_ns = 0.3, .receive_ns = 0.1});
  EXPECT_EQ(slow.send, 30);
  EXPECT_EQ(slow.receive, 10);
  // A row's fixed cost counts: 8192 x 0.1 ns more.
  const Roles issue =
      split_lanes(41, kLoad, {.issue_ns = 819.2, .send_ns = 0.1, .receive_ns = 0.1});
  EXPECT_NEAR(issue.send, 27, 1);
}

}  // namespace
}  // namespace ubep
