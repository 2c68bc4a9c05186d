#include "memory/word.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <thread>
#include <vector>

namespace ubep {
namespace {

TEST(SharedWordTest, StoresAndLoads) {
  alignas(8) std::uint64_t memory = 5;
  const SharedWord word(&memory);
  EXPECT_EQ(word.load_acquire(), 5U);
  word.store_release(~std::uint64_t{0});
  EXPECT_EQ(memory, ~std::uint64_t{0});
}

// Peers map segments for reading only: a load must not write.
TEST(SharedWordTest, LoadsFromMemoryThatCannotBeWritten) {
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_EQ(SharedWord(page).load_acquire(), 0U);
  munmap(page, 4096);
}

TEST(SharedWordTest, CarriesTheBytesStoredBefore) {
  alignas(8) std::uint64_t flag = 0;
  std::array<std::uint64_t, 64> data{};
  std::thread writer([&] {
    data.fill(3);
    SharedWord(&flag).store_release(1);
  });
  while (SharedWord(&flag).load_acquire() == 0) cpu_relax();
  for (const std::uint64_t value : data) EXPECT_EQ(value, 3U);
  writer.join();
}

TEST(LaneWordTest, ClaimsOnlyFromTheGivenValue) {
  LaneWord word(4);
  EXPECT_FALSE(word.try_claim(3, 9));
  EXPECT_EQ(word.load_acquire(), 4U);
  EXPECT_TRUE(word.try_claim(4, 9));
  EXPECT_EQ(word.load_acquire(), 9U);
  EXPECT_FALSE(word.try_claim(4, 9));
}

TEST(LaneWordTest, CountsBothWays) {
  LaneWord word;
  word.add_relaxed(5);
  EXPECT_EQ(word.subtract_acq_rel(2), 3U);
  EXPECT_EQ(word.subtract_acq_rel(3), 0U);
}

// A claimed word is a lock: a plain counter under it loses nothing.
TEST(LaneWordTest, OneLaneAtATime) {
  constexpr int kLanes = 4;
  constexpr int kRounds = 2000;
  LaneWord lock(1);
  int counter = 0;
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        while (!lock.try_claim(1, 0)) std::this_thread::yield();
        ++counter;
        lock.store_release(1);
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  EXPECT_EQ(counter, kLanes * kRounds);
}

}  // namespace
}  // namespace ubep
