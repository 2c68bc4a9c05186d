// The simulated fabric is strict: what would go unnoticed where memory is mapped does not here.
#include "sim/fabric.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sim/world.hpp"

namespace ubep::sim {
namespace {

constexpr std::uint64_t kBytes = 16'384;
constexpr std::uint64_t kFlag = kFabricHeaderBytes;
constexpr Range kRow{4096, 128};

// Three ranks and no lane: each call of a fabric moves virtual time on.
class SimFabricTest : public testing::Test {
 protected:
  void make(bool mapped, bool weak, Time delay = 500 * kNanosecond) {
    WorldOptions options;
    options.ranks = 3;
    options.mapped = mapped;
    options.has_links = false;
    options.pod.tiers = {{"all", 3, 50 * kNanosecond, 0}};
    options.pod.jitter = 100 * kNanosecond;
    options.pod.lane.poll = 10 * kNanosecond;
    options.memory.segment_bytes = {kBytes, kBytes, kBytes};
    options.memory.inbox_bytes = {kBytes, kBytes, kBytes};
    options.memory.weak = weak;
    options.memory.delay = delay;
    world_ = std::make_unique<World>(options);
  }
  void SetUp() override { make(false, true); }

  SimFabric& writer() { return world_->fabric(0); }
  SimFabric& reader() { return world_->fabric(1); }

  void write(int value, Range range = kRow) {
    std::memset(writer().claim(range), value, range.bytes);
  }
  void put(int value, Range range = kRow, Store store = Store::near) {
    std::memset(writer().claim_at(1, range), value, range.bytes);
    writer().commit_at(1, range, store);
  }
  static const std::byte* await(SimFabric& fabric, int rank, Range range) {
    const std::byte* bytes = nullptr;
    while ((bytes = fabric.acquire(rank, range)) == nullptr) (void)fabric.progress();
    return bytes;
  }
  std::vector<std::byte> fetch(Range range = kRow) {
    const std::byte* bytes = await(reader(), 0, range);
    std::vector<std::byte> copy(bytes, bytes + range.bytes);
    reader().release(0, range);
    return copy;
  }
  std::vector<std::byte> received(Range range = kRow) {
    const std::byte* bytes = reader().inbox(range);
    return {bytes, bytes + range.bytes};
  }
  void await_flag(std::uint64_t value) {
    while (reader().load_flag(0, kFlag) < value) {
    }
  }
  // Until whatever is under way has arrived.
  void settle() { world_->spend(100 * kMicrosecond); }
  static std::vector<std::byte> all(int value, std::uint64_t bytes = kRow.bytes) {
    return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
  }

  std::unique_ptr<World> world_;
};

// All bytes of a put are there before its acknowledgement is back.
TEST_F(SimFabricTest, FlushedOnceAllPutsAreAcknowledged) {
  for (const bool weak : {false, true}) {
    make(true, weak);
    EXPECT_TRUE(writer().flushed(1));
    for (int value = 1; value <= 50; ++value) {
      put(value, kRow, value % 2 == 0 ? Store::far : Store::near);
      if (value % 2 == 0) writer().order(Ordering::before_flag);  // orders: nothing else
      while (!writer().flushed(1)) {
      }
      ASSERT_EQ(received(), all(value));
      EXPECT_TRUE(writer().flushed(2));
    }
  }
}

// Where rows do not move, the fabric knows which puts have landed.
TEST_F(SimFabricTest, IncomingTellsOfPutsWithoutRows) {
  WorldOptions options = world_->options();
  options.mapped = true;
  options.memory.weak = false;
  options.memory.moves_rows = false;
  options.memory.tells_puts = true;
  world_ = std::make_unique<World>(options);
  const Range other{kRow.offset + 1024, 64};
  EXPECT_EQ(reader().incoming(0, kRow), nullptr);
  for (int i = 0; i < 3; ++i) {
    writer().commit_at(1, kRow, Store::near);
    settle();
    EXPECT_NE(reader().incoming(0, kRow), nullptr);
    EXPECT_EQ(reader().incoming(0, other), nullptr);
    EXPECT_NE(reader().incoming(0, kRow), nullptr);
    reader().taken(0, kRow);
    EXPECT_EQ(reader().incoming(0, kRow), nullptr);
  }
}

// The planted fault: flags for all still wait, one for a single peer does not.
TEST_F(SimFabricTest, ALostSignalIsSeenBeforeItsRows) {
  WorldOptions options = world_->options();
  options.memory.loses_signal = true;
  world_ = std::make_unique<World>(options);
  int early = 0;
  for (int value = 1; value <= 50; ++value) {
    put(value);
    writer().signal(1, kFlag, static_cast<std::uint64_t>(value));  // publishes: nothing
    await_flag(static_cast<std::uint64_t>(value));
    early += received() != all(value);
    settle();
  }
  EXPECT_GT(early, 0);
}

TEST_F(SimFabricTest, WithoutMappedMemoryBytesAreFetched) {
  EXPECT_FALSE(reader().facts().mapped);
  EXPECT_EQ(reader().acquire(0, kRow), nullptr);
  EXPECT_NE(await(reader(), 0, kRow), nullptr);
  make(true, false);
  EXPECT_TRUE(reader().facts().mapped);
  EXPECT_NE(reader().acquire(0, kRow), nullptr);
}

TEST_F(SimFabricTest, WhatWasNotCommittedIsNotPublished) {
  for (const bool mapped : {false, true}) {
    make(mapped, true);
    write(5);
    writer().store_flag(kFlag, 1);
    await_flag(1);
    settle();
    EXPECT_EQ(fetch(), all(0));
  }
}

// Some of them come earlier, none later.
TEST_F(SimFabricTest, WhatWasCommittedIsThereWithItsFlag) {
  for (const bool mapped : {false, true}) {
    make(mapped, true);
    bool came_early = false;
    for (int value = 1; value <= 100; ++value) {
      write(value);
      writer().commit(kRow, Store::near);
      writer().store_flag(kFlag, static_cast<std::uint64_t>(value));
      while (reader().load_flag(0, kFlag) < static_cast<std::uint64_t>(value)) {
        const auto early = fetch();
        for (const std::byte byte : early) {
          const int seen = std::to_integer<int>(byte);
          EXPECT_TRUE(seen == value || seen == value - 1) << seen;
        }
        came_early |= reader().load_flag(0, kFlag) < static_cast<std::uint64_t>(value) &&
                      early != all(value - 1);
      }
      ASSERT_EQ(fetch(), all(value));
    }
    EXPECT_TRUE(came_early);
  }
}

// Stored past the caches: a flag announces them only after an order().
TEST_F(SimFabricTest, FarBytesNeedAnOrder) {
  const Range block{4096, 4096};
  for (const bool orders : {true, false}) {
    int late = 0;
    make(true, true);
    for (int value = 1; value <= 50; ++value) {
      write(value, block);
      writer().commit(block, Store::far);
      if (orders) writer().order(Ordering::before_flag);
      writer().store_flag(kFlag, static_cast<std::uint64_t>(value));
      await_flag(static_cast<std::uint64_t>(value));
      if (fetch(block) != all(value, block.bytes)) ++late;
      settle();
      EXPECT_EQ(fetch(block), all(value, block.bytes));
    }
    EXPECT_EQ(late == 0, orders) << late;
  }
}

TEST_F(SimFabricTest, CommitIsASnapshot) {
  write(5);
  writer().commit(kRow, Store::near);
  write(6);
  writer().store_flag(kFlag, 1);
  await_flag(1);
  settle();
  EXPECT_EQ(fetch(), all(5));
}

TEST_F(SimFabricTest, FlagsComeLateAndInOrder) {
  for (std::uint64_t value = 1; value <= 100; ++value) {
    writer().store_flag(kFlag, value);
    world_->spend(20 * kNanosecond);
  }
  EXPECT_EQ(writer().load_flag(0, kFlag), 100U);
  std::vector<std::uint64_t> seen{reader().load_flag(0, kFlag)};
  while (seen.back() < 100) seen.push_back(reader().load_flag(0, kFlag));
  EXPECT_LT(seen.front(), 100U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_GT(seen.size(), 2U) << "all at once";
}

TEST_F(SimFabricTest, OnePeerSeesASignal) {
  writer().signal(1, kFlag, 1);
  settle();
  EXPECT_EQ(reader().load_flag(0, kFlag), 1U);
  EXPECT_EQ(world_->fabric(2).load_flag(0, kFlag), 0U);
}

TEST_F(SimFabricTest, RowsAreInAnInboxWithTheFlag) {
  for (const bool weak : {true, false}) {
    make(false, weak);
    for (int value = 1; value <= 50; ++value) {
      put(value);
      writer().signal(1, kFlag, static_cast<std::uint64_t>(value));
      await_flag(static_cast<std::uint64_t>(value));
      ASSERT_EQ(received(), all(value));
    }
  }
}

TEST_F(SimFabricTest, ARowThatIsPutOnceMoreIsNotANumber) {
  put(5);
  writer().commit_at(1, kRow, Store::near);
  settle();
  EXPECT_EQ(received(), all(0xFF));
}

TEST_F(SimFabricTest, FetchesTakeDifferentlyLong) {
  std::vector<int> calls;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const Range range{kRow.offset + 64 * i, 64};
    int needed = 0;
    while (reader().acquire(0, range) == nullptr) {
      (void)reader().progress();
      ++needed;
    }
    calls.push_back(needed);
    reader().release(0, range);
  }
  EXPECT_GE(*std::min_element(calls.begin(), calls.end()), 1);
  EXPECT_GT(*std::max_element(calls.begin(), calls.end()),
            2 * *std::min_element(calls.begin(), calls.end()));
}

// Not released: what arrived once is what a later acquire gets, however old.
TEST_F(SimFabricTest, AForgottenFetchGoesStale) {
  (void)await(reader(), 0, kRow);
  EXPECT_EQ(reader().held(), "rank 1 still holds 128 bytes at 4096 of rank 0");
  write(5);
  writer().commit(kRow, Store::near);
  writer().store_flag(kFlag, 1);
  await_flag(1);
  EXPECT_EQ(fetch(), all(0));
  EXPECT_EQ(fetch(), all(5));
  EXPECT_EQ(reader().held(), "");
}

TEST_F(SimFabricTest, AbandonLetsGoOfWhatLiesInside) {
  const Range inside{kRow.offset, 64};
  const Range outside{kRow.offset + 64, 65};
  (void)await(reader(), 0, inside);
  (void)reader().acquire(0, kRow);
  (void)reader().acquire(0, outside);
  (void)reader().acquire(2, kRow);
  reader().abandon(0, kRow);
  reader().abandon(2, kRow);
  EXPECT_EQ(reader().held(), "rank 1 still holds 65 bytes at 4160 of rank 0");
  reader().abandon(0, outside);
  EXPECT_EQ(reader().held(), "");
  settle();
  EXPECT_EQ(reader().progress(), 0) << "abandoned fetches do not arrive";
  EXPECT_EQ(reader().acquire(0, inside), nullptr) << "a new fetch";
}

TEST_F(SimFabricTest, TheEndComesAfterTheLastWords) {
  for (const bool weak : {true, false}) {
    make(false, weak);
    write(5);
    writer().commit(kRow, Store::near);
    put(7);
    writer().store_flag(kFlag, 1);
    world_->kill(0);
    EXPECT_EQ(reader().peer_state(0), PeerState::live);
    while (reader().peer_state(0) == PeerState::live) {
    }
    EXPECT_EQ(reader().peer_state(0), PeerState::dead);
    EXPECT_EQ(reader().load_flag(0, kFlag), 1U);
    EXPECT_EQ(fetch(), all(5));
    EXPECT_EQ(received(), all(7));
    EXPECT_EQ(reader().peer_state(2), PeerState::live);
  }
}

// Its caller ends, wherever it is; what it stored before still arrives.
TEST_F(SimFabricTest, ADeadRankActsNoMore) {
  bool goes_on = false;
  world_->start(0, [&] {
    writer().store_flag(kFlag, 1);
    world_->kill(0);
    writer().store_flag(kFlag, 2);
    goes_on = true;
  });
  EXPECT_TRUE(world_->run());
  EXPECT_FALSE(goes_on);
  settle();
  EXPECT_EQ(reader().load_flag(0, kFlag), 1U);
  EXPECT_EQ(reader().peer_state(0), PeerState::dead);
}

using SimFabricDeathTest = SimFabricTest;

std::byte look(const std::byte* at) { return *const_cast<const volatile std::byte*>(at); }

TEST_F(SimFabricDeathTest, ReleaseWithoutAcquire) {
  EXPECT_DEATH(reader().release(0, kRow), "rank 1 releases 128 bytes at 4096 of rank 0");
  EXPECT_EQ(reader().acquire(0, kRow), nullptr);
  EXPECT_DEATH(reader().release(0, kRow), "not acquired");
  (void)await(reader(), 0, kRow);
  reader().release(0, kRow);
  EXPECT_DEATH(reader().release(0, kRow), "not acquired");
}

TEST_F(SimFabricDeathTest, UseAfterRelease) {
  const std::byte* bytes = await(reader(), 0, kRow);
  EXPECT_EQ(look(bytes), std::byte{0});
  reader().release(0, kRow);
  EXPECT_DEATH(look(bytes), "");
}

TEST_F(SimFabricDeathTest, UseAfterAbandon) {
  const std::byte* bytes = await(reader(), 0, kRow);
  reader().abandon(0, kRow);
  EXPECT_DEATH(look(bytes), "");
}

TEST_F(SimFabricDeathTest, ReadingBeyondACopy) {
  const std::byte* bytes = await(reader(), 0, kRow);
  EXPECT_EQ(look(bytes + kRow.bytes - 1), std::byte{0});
  EXPECT_DEATH(look(bytes + kRow.bytes), "");
}

TEST_F(SimFabricDeathTest, CommitWithoutClaim) {
  EXPECT_DEATH(writer().commit(kRow, Store::near), "rank 0 commits 128 bytes at 4096, not claimed");
  write(1);
  EXPECT_DEATH(writer().commit({kRow.offset, kRow.bytes + 4}, Store::near), "not claimed");
  writer().commit(kRow, Store::near);
  EXPECT_DEATH(writer().commit(kRow, Store::near), "not claimed");
}

TEST_F(SimFabricDeathTest, FlagsThatDoNotGrow) {
  writer().store_flag(kFlag, 4);
  EXPECT_DEATH(writer().store_flag(kFlag, 4), "store_flag at 512: 4 after 4");
  EXPECT_DEATH(writer().store_flag(kFlag, 3), "3 after 4");
  EXPECT_DEATH(writer().signal(1, kFlag, 3), "signal at 512: 3 after 4");
  EXPECT_DEATH(writer().store_flag(kFlag + 4, 5), "no place for one");
  EXPECT_DEATH(writer().store_flag(8, 5), "no place for one");
}

TEST_F(SimFabricDeathTest, OutsideTheSegment) {
  for (const bool mapped : {false, true}) {
    make(mapped, true);
    EXPECT_DEATH((void)reader().acquire(0, {kBytes - 64, 65}), "there are 16384");
    EXPECT_DEATH((void)reader().acquire(0, {~std::uint64_t{0}, 8}), "acquire of 8 bytes");
    EXPECT_DEATH((void)reader().acquire(3, kRow), "acquire of rank 3");
    EXPECT_DEATH((void)reader().load_flag(-1, kFlag), "load_flag of rank -1");
    EXPECT_DEATH((void)writer().claim({0, kBytes + 1}), "claim of 16385 bytes");
    EXPECT_DEATH(writer().commit({0, kBytes + 1}, Store::near), "commit of 16385 bytes");
    EXPECT_DEATH(writer().store_flag(kBytes, 1), "store_flag of 8 bytes");
  }
}

TEST_F(SimFabricDeathTest, OutsideTheInbox) {
  EXPECT_DEATH((void)reader().inbox({kBytes, 1}), "inbox of 1 bytes");
  EXPECT_DEATH((void)writer().claim_at(1, {kBytes - 1, 2}), "claim_at of 2 bytes");
  EXPECT_DEATH(writer().commit_at(1, {kBytes - 1, 2}, Store::near), "commit_at of 2 bytes");
  EXPECT_DEATH((void)writer().claim_at(3, kRow), "claim_at of rank 3");
  EXPECT_DEATH((void)writer().claim_at(0, kRow), "its own inbox");
}

}  // namespace
}  // namespace ubep::sim
