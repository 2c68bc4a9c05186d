// Sizes of private areas, and how work is cut into tiles.
#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include "base/math.hpp"
#include "engine/op.hpp"
#include "memory/private_rows.hpp"
#include "protocol/segment_layout.hpp"

namespace ubep {
namespace {

GroupConfig config_of(std::vector<std::int32_t> owner, int ranks) {
  GroupConfig config;
  config.size = ranks;
  config.slots = 2;
  config.max_tokens = 50;
  config.max_topk = 4;
  config.max_stride = 1024;
  config.experts = ExpertMap(std::move(owner), ranks);
  return config;
}

// x, received rows, outputs: of every slot.
TEST(PrivateBytesTest, EverySlotHasItsAreas) {
  for (const int rank : {0, 1, 2}) {
    const GroupConfig config = config_of({0, 1, 1}, 3);
    const SegmentLayout layout(config, rank);
    EXPECT_EQ(private_bytes(config, rank),
              2 * (PrivateRows::reserved_bytes(layout.x_area_bytes()) +
                   2 * PrivateRows::reserved_bytes(layout.y_area_bytes())));
  }
}

// It may be sent every token of every rank, by allgather.
TEST(PrivateBytesTest, ARankWithoutExpertsHasRoomForTokens) {
  const GroupConfig config = config_of({0, 0}, 2);
  EXPECT_EQ(private_bytes(config, 1),
            2 * (round_up(51'200, kPageBytes) + 2 * round_up(102'400, kPageBytes)));
}

TEST(TilesForTest, SmallWorkIsOneTileAndLargeWorkHasABound) {
  EXPECT_EQ(tiles_for(0, 1024, 4), 1U);
  EXPECT_EQ(tiles_for(1024 - 1, 1024, 4), 1U);
  EXPECT_EQ(tiles_for(1024, 1024, 4), 2U);
  EXPECT_EQ(tiles_for(100 * 1024, 1024, 4), 4U);
  EXPECT_EQ(tiles_for(~std::uint64_t{0}, 1024, 16), 16U);
}

// One operation never needs more tiles than a board has.
TEST(OpTest, TheBoardsHoldTheLargestOperation) {
  for (const int ranks : {1, 2, kMaxRanks, kMostRanks}) {
    Op op(ranks);
    op.send.add(0, 1'000'000, kTilesForAll);
    for (int q = 0; q < ranks; ++q) {
      EXPECT_NO_THROW(op.receive.add(static_cast<std::uint32_t>(q), 1'000'000, kTilesPerPeer));
    }
    EXPECT_FALSE(op.receive.idle());
  }
}

}  // namespace
}  // namespace ubep
