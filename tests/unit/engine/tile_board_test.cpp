#include "engine/tile_board.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "support/random.hpp"

namespace ubep {
namespace {

std::vector<std::pair<std::uint32_t, std::uint32_t>> tiles_of(TileBoard& board) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> tiles;
  (void)board.run([&](Tile& tile) {
    tiles.emplace_back(tile.next, tile.end);
    tile.next = tile.end;
    return 0;
  });
  return tiles;
}

TEST(TileBoardTest, TilesCoverTheRowsEvenly) {
  for (std::uint32_t rows = 1; rows < 40; ++rows) {
    for (std::uint32_t wanted = 1; wanted <= 16; ++wanted) {
      TileBoard board(16);
      board.add(3, rows, wanted);
      const auto tiles = tiles_of(board);
      ASSERT_EQ(tiles.size(), std::min(rows, wanted));
      std::uint32_t next = 0;
      for (const auto& [begin, end] : tiles) {
        ASSERT_EQ(begin, next);
        ASSERT_LE(rows / tiles.size(), end - begin);
        ASSERT_GE(rows / tiles.size() + 1, end - begin);
        next = end;
      }
      ASSERT_EQ(next, rows);
    }
  }
}

TEST(TileBoardTest, NoRowsAreNoWork) {
  TileBoard board(4);
  EXPECT_TRUE(board.idle());
  board.add(0, 0, 4);
  EXPECT_TRUE(board.idle());
  EXPECT_TRUE(tiles_of(board).empty());
}

TEST(TileBoardTest, ReportsRowsDone) {
  TileBoard board(8);
  board.add(0, 10, 4);
  board.add(1, 3, 4);
  const auto work = [](Tile& tile) {
    const auto rows = static_cast<int>(tile.end - tile.next);
    tile.next = tile.end;
    return rows;
  };
  EXPECT_FALSE(board.idle());
  EXPECT_EQ(board.run(work), 13);
  EXPECT_TRUE(board.idle());
  EXPECT_EQ(board.run(work), 0);
}

// The fabric lets a lane come only so far: the tile goes on where it stopped.
TEST(TileBoardTest, ATileGivenBackGoesOnWhereItStopped) {
  TileBoard board(2);
  board.add(0, 7, 1);
  std::vector<std::uint32_t> rows;
  const auto one_row = [&](Tile& tile) {
    rows.push_back(tile.next++);
    return 1;
  };
  for (int call = 0; call < 7; ++call) {
    EXPECT_FALSE(board.idle());
    EXPECT_EQ(board.run(one_row), 1);
  }
  EXPECT_TRUE(board.idle());
  EXPECT_EQ(rows, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(TileBoardTest, DropTakesAllFreeTilesOff) {
  TileBoard board(8);
  board.add(0, 100, 4);
  board.drop();
  EXPECT_TRUE(board.idle());
  EXPECT_TRUE(tiles_of(board).empty());
  board.clear();
  board.add(1, 2, 2);
  EXPECT_EQ(tiles_of(board).size(), 2U);
}

TEST(TileBoardTest, TellsWhetherATileIsFree) {
  TileBoard board(4);
  EXPECT_FALSE(board.has_free());
  board.add(0, 2, 1);
  EXPECT_TRUE(board.has_free());
  (void)board.run([&](Tile& tile) {
    EXPECT_FALSE(board.has_free());  // this lane has it
    ++tile.next;
    return 1;
  });
  EXPECT_TRUE(board.has_free());  // given back
  board.drop();
  EXPECT_FALSE(board.has_free());
}

TEST(TileBoardTest, IsUsedAgainAfterClear) {
  TileBoard board(4);
  for (int round = 0; round < 10; ++round) {
    board.add(0, 4, 4);
    EXPECT_EQ(tiles_of(board).size(), 4U);
    board.clear();
    EXPECT_TRUE(board.idle());
  }
}

// Lanes come and go, give tiles back at random, and work is added meanwhile: every row is done
// exactly once, by one lane at a time, and idle() shows all of it.
TEST(TileBoardTest, EachRowExactlyOnceOnManyLanes) {
  constexpr int kLanes = 4;
  constexpr std::uint32_t kPeers = 8;
  constexpr std::uint32_t kRows = 500;
  TileBoard board(std::size_t{kPeers} * 4);
  std::vector<std::vector<int>> done(kPeers, std::vector<int>(kRows));  // no atomics: TSan watches
  std::atomic<bool> stop = false;
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes.emplace_back([&, lane] {
      test::Random random(static_cast<std::uint64_t>(lane));
      while (!stop) {
        const int rows = board.run([&](Tile& tile) {
          const std::uint32_t begin = tile.next;
          while (tile.next < tile.end && !random.one_in(30)) ++done[tile.peer][tile.next++];
          return static_cast<int>(tile.next - begin);
        });
        if (rows == 0) std::this_thread::yield();
      }
    });
  }
  for (std::uint32_t peer = 0; peer < kPeers; ++peer) board.add(peer, kRows, 4);
  while (!board.idle()) std::this_thread::yield();
  for (const auto& rows : done) {
    for (const int count : rows) ASSERT_EQ(count, 1);
  }
  stop = true;
  for (std::thread& lane : lanes) lane.join();
}

}  // namespace
}  // namespace ubep
