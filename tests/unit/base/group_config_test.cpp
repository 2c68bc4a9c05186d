#include "base/group_config.hpp"

#include <gtest/gtest.h>

namespace ubep {
namespace {

using Ints = std::vector<std::int32_t>;

TEST(BlockMapTest, TheFirstRanksOwnOneMore) {
  EXPECT_EQ(block_map(7, 3), (Ints{0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(block_map(2, 4), (Ints{0, 1}));
  EXPECT_EQ(block_map(4, 1), (Ints{0, 0, 0, 0}));
}

TEST(ExpertMapTest, SortsByOwnerThenId) {
  const ExpertMap map({2, 0, 2, 0, 3, 2}, 5);
  EXPECT_EQ(map.num_experts(), 6);
  EXPECT_EQ(map.local, (Ints{0, 0, 1, 1, 0, 2}));
  EXPECT_EQ(map.first, (Ints{0, 2, 2, 5, 6, 6}));
  EXPECT_EQ(map.position, (Ints{2, 0, 3, 1, 5, 4}));
  EXPECT_EQ(map.num_local(0), 2);
  EXPECT_EQ(map.num_local(1), 0);
  EXPECT_EQ(map.num_local(2), 3);
  EXPECT_EQ(map.num_local(4), 0);
}

GroupConfig small_config() {
  GroupConfig config;
  config.size = 3;
  config.max_tokens = 10;
  config.max_topk = 4;
  config.experts = ExpertMap({0, 0, 0, 0, 0, 2}, 3);
  return config;
}

// A token may name one expert topk times: as many rows as choices, whoever has an expert at all.
TEST(GroupConfigTest, RowsFromOneSource) {
  const GroupConfig config = small_config();
  EXPECT_EQ(config.max_rows_from_source(0, 4), 40U);
  EXPECT_EQ(config.max_rows_from_source(0, 2), 20U);
  EXPECT_EQ(config.max_rows_from_source(1, 4), 0U);
  EXPECT_EQ(config.max_rows_from_source(2, 4), 40U);
}

TEST(GroupConfigTest, RowsInAllCountThePaddingOfEveryExpert) {
  const GroupConfig config = small_config();
  EXPECT_EQ(config.max_rows(0), 3U * 40 + 5 * (kMaxAlignment - 1));
  EXPECT_EQ(config.max_rows(1), 3U * 10);  // allgather: every token
  EXPECT_EQ(config.max_rows(2), 3U * 40 + (kMaxAlignment - 1));
}

TEST(GroupConfigTest, PaddedExpertsMayNeedMoreRows) {
  GroupConfig config = small_config();
  config.expert_capacity = 1000;
  EXPECT_EQ(config.max_rows(0), 5U * 1000);
  EXPECT_EQ(config.max_rows(1), 3U * 10);
  EXPECT_EQ(config.max_rows(2), 1U * 1000);
}

TEST(GroupConfigTest, NoTokensNeedNoRows) {
  GroupConfig config = small_config();
  config.max_tokens = 0;
  EXPECT_EQ(config.max_rows(0), 0U);
}

}  // namespace
}  // namespace ubep
