#include "base/hash.hpp"

#include <gtest/gtest.h>

#include <set>

namespace ubep {
namespace {

TEST(HashTest, OrderAndEveryValueCount) {
  EXPECT_NE(mix(mix(0, 1), 2), mix(mix(0, 2), 1));
  std::set<std::uint64_t> seen;
  for (std::uint64_t value = 0; value < 1000; ++value) seen.insert(mix(7, value));
  EXPECT_EQ(seen.size(), 1000U);
}

// Ranks of one build compare it, so only a change between builds is told apart by the wire version.
TEST(HashTest, IsTheSameEverywhere) {
  static_assert(mix(1, 2) == 0x02305a389302c2e6U);
  EXPECT_EQ(mix(mix(1, 2), 3), 0xbe01c5ab8518bf20U);
}

}  // namespace
}  // namespace ubep
