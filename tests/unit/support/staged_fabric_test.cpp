// The staged fabric is strict: what would go unnoticed where memory is mapped does not here.
#include "support/staged_fabric.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace ubep::test {
namespace {

constexpr std::uint64_t kBytes = 16'384;
constexpr std::uint64_t kFlag = kFabricHeaderBytes;
constexpr Range kRow{4096, 128};

class StagedFabricTest : public testing::Test {
 protected:
  StagedWorld world_{{.segment_bytes = {kBytes, kBytes, kBytes}, .seed = 7}};
  StagedFabric& writer_ = world_.rank(0);
  StagedFabric& reader_ = world_.rank(1);

  void write(int value, Range range = kRow) const {
    std::memset(writer_.claim(range), value, range.bytes);
  }
  static const std::byte* await(StagedFabric& fabric, int rank, Range range) {
    const std::byte* bytes = nullptr;
    while ((bytes = fabric.acquire(rank, range)) == nullptr) fabric.progress();
    return bytes;
  }
  std::vector<std::byte> fetch(Range range = kRow) const {
    const std::byte* bytes = await(reader_, 0, range);
    std::vector<std::byte> copy(bytes, bytes + range.bytes);
    reader_.release(0, range);
    return copy;
  }
  void await_flag(std::uint64_t value) const {
    while (reader_.load_flag(0, kFlag) < value) reader_.progress();
  }
  static std::vector<std::byte> all(int value, std::uint64_t bytes = kRow.bytes) {
    return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
  }
};

TEST_F(StagedFabricTest, IsNotMapped) {
  EXPECT_FALSE(reader_.facts().mapped);
  EXPECT_EQ(reader_.acquire(0, kRow), nullptr);
}

TEST_F(StagedFabricTest, WhatWasNotCommittedIsNotPublished) {
  write(5);
  writer_.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(0xFF));
}

TEST_F(StagedFabricTest, WhatWasCommittedWaitsForTheFlag) {
  write(5);
  writer_.commit(kRow);
  for (int i = 0; i < 50; ++i) reader_.progress();
  EXPECT_EQ(fetch(), all(0xFF));
  writer_.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(5));
}

TEST_F(StagedFabricTest, CommitIsASnapshot) {
  write(5);
  writer_.commit(kRow);
  write(6);
  writer_.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(5));
}

TEST_F(StagedFabricTest, FlagsComeLateInOrderAndToEachPeerByItself) {
  for (std::uint64_t value = 1; value <= 100; ++value) writer_.store_flag(kFlag, value);
  EXPECT_EQ(reader_.load_flag(0, kFlag), 0U);
  EXPECT_EQ(writer_.load_flag(0, kFlag), 100U);
  std::vector<std::uint64_t> seen;
  while (reader_.load_flag(0, kFlag) < 100) {
    reader_.progress();
    seen.push_back(reader_.load_flag(0, kFlag));
  }
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_GT(seen.size(), 2U) << "all at once";
  EXPECT_EQ(world_.rank(2).load_flag(0, kFlag), 0U) << "its own progress() was not called";
}

TEST_F(StagedFabricTest, FetchesTakeDifferentlyLong) {
  std::vector<int> calls;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const Range range{kRow.offset + 64 * i, 64};
    int needed = 0;
    while (reader_.acquire(0, range) == nullptr) {
      reader_.progress();
      ++needed;
    }
    calls.push_back(needed);
    reader_.release(0, range);
  }
  EXPECT_EQ(*std::min_element(calls.begin(), calls.end()), 1);
  EXPECT_EQ(*std::max_element(calls.begin(), calls.end()), 3);
}

// Not released: what arrived once is what a later acquire gets, however old.
TEST_F(StagedFabricTest, AForgottenFetchGoesStale) {
  EXPECT_EQ(reader_.acquire(0, kRow), nullptr);
  for (int i = 0; i < 10; ++i) reader_.progress();
  EXPECT_NE(reader_.held(), "");
  write(5);
  writer_.commit(kRow);
  writer_.store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(0xFF));
  EXPECT_EQ(fetch(), all(5));
  EXPECT_EQ(reader_.held(), "");
}

TEST_F(StagedFabricTest, AbandonLetsGoOfWhatLiesInside) {
  const Range inside{kRow.offset, 64};
  const Range outside{kRow.offset + 64, 65};
  (void)await(reader_, 0, inside);
  (void)reader_.acquire(0, kRow);
  (void)reader_.acquire(0, outside);
  (void)reader_.acquire(2, kRow);
  reader_.abandon(0, kRow);
  reader_.abandon(2, kRow);
  EXPECT_NE(reader_.held().find("65 bytes at 4160 of rank 0"), std::string::npos) << reader_.held();
  reader_.abandon(0, outside);
  EXPECT_EQ(reader_.held(), "");
  EXPECT_EQ(reader_.acquire(0, inside), nullptr) << "a new fetch";
}

TEST_F(StagedFabricTest, TheEndComesAfterTheLastFlag) {
  write(5);
  writer_.commit(kRow);
  writer_.store_flag(kFlag, 1);
  write(6);
  writer_.commit(kRow);
  world_.end(0, PeerState::dead);
  EXPECT_EQ(reader_.peer_state(0), PeerState::live);
  while (reader_.peer_state(0) == PeerState::live) reader_.progress();
  EXPECT_EQ(reader_.peer_state(0), PeerState::dead);
  EXPECT_EQ(reader_.load_flag(0, kFlag), 1U);
  EXPECT_EQ(fetch(), all(5));
}

using StagedFabricDeathTest = StagedFabricTest;

std::byte look(const std::byte* at) { return *const_cast<const volatile std::byte*>(at); }

TEST_F(StagedFabricDeathTest, ReleaseWithoutAcquire) {
  EXPECT_DEATH(reader_.release(0, kRow), "rank 1 releases 128 bytes at 4096 of rank 0");
  EXPECT_EQ(reader_.acquire(0, kRow), nullptr);
  EXPECT_DEATH(reader_.release(0, kRow), "did not acquire");
  (void)await(reader_, 0, kRow);
  reader_.release(0, kRow);
  EXPECT_DEATH(reader_.release(0, kRow), "did not acquire");
}

TEST_F(StagedFabricDeathTest, UseAfterRelease) {
  const std::byte* bytes = await(reader_, 0, kRow);
  EXPECT_EQ(look(bytes), kUnpublished);
  reader_.release(0, kRow);
  EXPECT_DEATH(look(bytes), "");
}

TEST_F(StagedFabricDeathTest, ReadingBeyondACopy) {
  const std::byte* bytes = await(reader_, 0, kRow);
  EXPECT_EQ(look(bytes + kRow.bytes - 1), kUnpublished);
  EXPECT_DEATH(look(bytes + kRow.bytes), "");
}

TEST_F(StagedFabricDeathTest, CommitWithoutClaim) {
  EXPECT_DEATH(writer_.commit(kRow), "commit of 128 bytes at 4096 that rank 0 did not claim");
  write(1);
  writer_.commit(kRow);
  EXPECT_DEATH(writer_.commit(kRow), "did not claim");
}

TEST_F(StagedFabricDeathTest, FlagsThatDoNotGrow) {
  writer_.store_flag(kFlag, 4);
  EXPECT_DEATH(writer_.store_flag(kFlag, 4), "goes from 4 to 4");
  EXPECT_DEATH(writer_.store_flag(kFlag, 3), "goes from 4 to 3");
  EXPECT_DEATH(writer_.store_flag(kFlag + 4, 1), "store_flag at");
  EXPECT_DEATH(writer_.store_flag(8, 1), "store_flag at 8");
}

TEST_F(StagedFabricDeathTest, OutsideTheSegment) {
  EXPECT_DEATH((void)reader_.acquire(0, {kBytes - 64, 65}), "the segment of rank 0 has 16384");
  EXPECT_DEATH((void)reader_.acquire(0, {~std::uint64_t{0}, 8}), "the segment of rank 0 has");
  EXPECT_DEATH((void)reader_.acquire(3, kRow), "acquire of rank 3");
  EXPECT_DEATH((void)writer_.claim({0, kBytes + 1}), "claim of 16385 bytes");
}

TEST_F(StagedFabricDeathTest, ADeadRankActsNoMore) {
  world_.end(0, PeerState::dead);
  EXPECT_DEATH(writer_.store_flag(kFlag, 1), "rank 0, which has ended");
}

}  // namespace
}  // namespace ubep::test
