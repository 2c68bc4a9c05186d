#include "memory/lane_set.hpp"

#include <gtest/gtest.h>

namespace ubep {
namespace {

TEST(LaneSetTest, HoldsWhatWasPublishedLast) {
  constexpr int kSize = 130;
  LaneSet lanes;
  RankSet set(kSize);
  for (const int rank : {0, 63, 64, 129}) set.insert(rank);
  lanes.store_release(set);
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(lanes.load_acquire(rank), set.contains(rank));
  set.clear();
  lanes.store_release(set);
  for (int rank = 0; rank < kSize; ++rank) EXPECT_FALSE(lanes.load_acquire(rank));
}

}  // namespace
}  // namespace ubep
