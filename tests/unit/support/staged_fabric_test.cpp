// The staged fabric is strict: what would go unnoticed where memory is mapped does not here.
#include "support/staged_fabric.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace ubep::test {
namespace {

constexpr std::uint64_t kBytes = 16 * 1024;
constexpr std::uint64_t kFlag = kFabricHeaderBytes;
constexpr Range kRow{4096, 128};

class StagedFabricTest : public testing::Test {
 protected:
  StagedWorld world{{.segment_bytes = {kBytes, kBytes, kBytes}, .seed = 7}};
  StagedFabric& writer = world.rank(0);
  StagedFabric& reader = world.rank(1);

  void write(int value, Range range = kRow) const {
    std::memset(writer.claim(range), value, range.bytes);
  }
  static const std::byte* await(StagedFabric& fabric, int rank, Range range) {
    const std::byte* bytes = nullptr;
    while ((bytes = fabric.acquire(rank, range)) == nullptr) fabric.progress();
    return bytes;
  }
  std::vector<std::byte> fetch(Range range = kRow) const {
    const std::byte* bytes = await(reader, 0, range);
    std::vector<std::byte> copy(bytes, bytes + range.bytes);
    reader.release(0, range);
    return copy;
  }
  void await_flag(std::uint64_t value) const {
    while (reader.load_flag(0, kFlag) < value) reader.progress();
  }
  static std::vector<std::byte> all(int value, std::uint64_t bytes = kRow.bytes) {
    return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
  }
};

TEST_F(StagedFabricTest, IsNotMapped) {
  EXPECT_FALSE(reader.facts().mapped);
  EXPECT_EQ(reader.acquire(0, kRow), nullptr);
}

TEST_F(StagedFabricTest, WhatWasNotCommittedIsNotPublished) {
  write(5);
  writer.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(0xFF));
}

TEST_F(StagedFabricTest, WhatWasCommittedWaitsForTheFlag) {
  write(5);
  writer.commit(kRow);
  for (int i = 0; i < 50; ++i) reader.progress();
  EXPECT_EQ(fetch(), all(0xFF));
  writer.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(5));
}

TEST_F(StagedFabricTest, CommitIsASnapshot) {
  write(5);
  writer.commit(kRow);
  write(6);
  writer.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(5));
}

TEST_F(StagedFabricTest, FlagsComeLateInOrderAndToEachPeerByItself) {
  for (std::uint64_t value = 1; value <= 100; ++value) writer.store_flag(kFlag, value);
  EXPECT_EQ(reader.load_flag(0, kFlag), 0U);
  EXPECT_EQ(writer.load_flag(0, kFlag), 100U);
  std::vector<std::uint64_t> seen;
  while (reader.load_flag(0, kFlag) < 100) {
    reader.progress();
    seen.push_back(reader.load_flag(0, kFlag));
  }
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_GT(seen.size(), 2U) << "all at once";
  EXPECT_EQ(world.rank(2).load_flag(0, kFlag), 0U) << "its own progress() was not called";
}

TEST_F(StagedFabricTest, FetchesTakeDifferentlyLong) {
  std::vector<int> calls;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const Range range{kRow.offset + 64 * i, 64};
    int needed = 0;
    while (reader.acquire(0, range) == nullptr) {
      reader.progress();
      ++needed;
    }
    calls.push_back(needed);
    reader.release(0, range);
  }
  EXPECT_EQ(*std::min_element(calls.begin(), calls.end()), 1);
  EXPECT_EQ(*std::max_element(calls.begin(), calls.end()), 3);
}

// Not released: what arrived once is what a later acquire gets, however old.
TEST_F(StagedFabricTest, AForgottenFetchGoesStale) {
  EXPECT_EQ(reader.acquire(0, kRow), nullptr);
  for (int i = 0; i < 10; ++i) reader.progress();
  EXPECT_NE(reader.held(), "");
  write(5);
  writer.commit(kRow);
  writer.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(0xFF));
  EXPECT_EQ(fetch(), all(5));
  EXPECT_EQ(reader.held(), "");
}

TEST_F(StagedFabricTest, AbandonLetsGoOfWhatLiesInside) {
  const Range inside{kRow.offset, 64};
  const Range outside{kRow.offset + 64, 65};
  (void)await(reader, 0, inside);
  (void)reader.acquire(0, kRow);
  (void)reader.acquire(0, outside);
  (void)reader.acquire(2, kRow);
  reader.abandon(0, kRow);
  reader.abandon(2, kRow);
  EXPECT_NE(reader.held().find("65 bytes at 4160 of rank 0"), std::string::npos) << reader.held();
  reader.abandon(0, outside);
  EXPECT_EQ(reader.held(), "");
  EXPECT_EQ(reader.acquire(0, inside), nullptr) << "a new fetch";
}

TEST_F(StagedFabricTest, TheEndComesAfterTheLastFlag) {
  write(5);
  writer.commit(kRow);
  writer.store_flag(kFlag, 1);
  write(6);
  writer.commit(kRow);
  world.end(0, PeerState::dead);
  EXPECT_EQ(reader.peer_state(0), PeerState::live);
  while (reader.peer_state(0) == PeerState::live) reader.progress();
  EXPECT_EQ(reader.peer_state(0), PeerState::dead);
  EXPECT_EQ(reader.load_flag(0, kFlag), 1U);
  EXPECT_EQ(fetch(), all(5));
}

using StagedFabricDeathTest = StagedFabricTest;

std::byte look(const std::byte* at) { return *const_cast<const volatile std::byte*>(at); }

TEST_F(StagedFabricDeathTest, ReleaseWithoutAcquire) {
  EXPECT_DEATH(reader.release(0, kRow), "rank 1 releases 128 bytes at 4096 of rank 0");
  EXPECT_EQ(reader.acquire(0, kRow), nullptr);
  EXPECT_DEATH(reader.release(0, kRow), "did not acquire");
  (void)await(reader, 0, kRow);
  reader.release(0, kRow);
  EXPECT_DEATH(reader.release(0, kRow), "did not acquire");
}

TEST_F(StagedFabricDeathTest, UseAfterRelease) {
  const std::byte* bytes = await(reader, 0, kRow);
  EXPECT_EQ(look(bytes), kUnpublished);
  reader.release(0, kRow);
  EXPECT_DEATH(look(bytes), "");
}

TEST_F(StagedFabricDeathTest, ReadingBeyondACopy) {
  const std::byte* bytes = await(reader, 0, kRow);
  EXPECT_EQ(look(bytes + kRow.bytes - 1), kUnpublished);
  EXPECT_DEATH(look(bytes + kRow.bytes), "");
}

TEST_F(StagedFabricDeathTest, CommitWithoutClaim) {
  EXPECT_DEATH(writer.commit(kRow), "commit of 128 bytes at 4096 that rank 0 did not claim");
  write(1);
  writer.commit(kRow);
  EXPECT_DEATH(writer.commit(kRow), "did not claim");
}

TEST_F(StagedFabricDeathTest, FlagsThatDoNotGrow) {
  writer.store_flag(kFlag, 4);
  EXPECT_DEATH(writer.store_flag(kFlag, 4), "goes from 4 to 4");
  EXPECT_DEATH(writer.store_flag(kFlag, 3), "goes from 4 to 3");
  EXPECT_DEATH(writer.store_flag(kFlag + 4, 1), "store_flag at");
  EXPECT_DEATH(writer.store_flag(8, 1), "store_flag at 8");
}

TEST_F(StagedFabricDeathTest, OutsideTheSegment) {
  EXPECT_DEATH((void)reader.acquire(0, {kBytes - 64, 65}), "the segment of rank 0 has 16384");
  EXPECT_DEATH((void)reader.acquire(0, {~std::uint64_t{0}, 8}), "the segment of rank 0 has");
  EXPECT_DEATH((void)reader.acquire(3, kRow), "acquire of rank 3");
  EXPECT_DEATH((void)writer.claim({0, kBytes + 1}), "claim of 16385 bytes");
}

TEST_F(StagedFabricDeathTest, ADeadRankActsNoMore) {
  world.end(0, PeerState::dead);
  EXPECT_DEATH(writer.store_flag(kFlag, 1), "rank 0, which has ended");
}

}  // namespace
}  // namespace ubep::test
