// What every fabric must do (src/fabric/concept.hpp), on each of FabricGroups.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "memory/copy.hpp"
#include "support/fabric_groups.hpp"
#include "support/random.hpp"

namespace ubep::test {
namespace {

constexpr std::uint64_t kBytes = 65536;
constexpr std::uint64_t kFlag = kFabricHeaderBytes;  // the first word that a fabric leaves alone
constexpr std::uint64_t kData = kFabricHeaderBytes + 1024;

std::vector<std::byte> pattern(std::uint64_t bytes, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random.below(256));
  return result;
}

template <class F>
void publish(F& fabric, Range range, const std::vector<std::byte>& bytes) {
  if (!bytes.empty()) std::memcpy(fabric.claim(range), bytes.data(), bytes.size());
  fabric.commit(range, Store::near);
}

// Calls `ready` between progress() until it holds. Throws when that takes too long.
template <class F, class Ready>
void progress_until(F& fabric, Ready ready, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!ready()) {
    if (fabric.progress() == 0) std::this_thread::yield();
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error(what);
  }
}

template <class F>
void await_flag(F& fabric, int rank, std::uint64_t offset, std::uint64_t value) {
  progress_until(
      fabric, [&] { return fabric.load_flag(rank, offset) >= value; }, "flag");
}

template <class F>
void await_state(F& fabric, int rank, PeerState state) {
  progress_until(
      fabric, [&] { return fabric.peer_state(rank) == state; }, "state");
}

// The bytes of a peer as they are now.
template <class F>
std::vector<std::byte> fetch(F& fabric, int rank, Range range) {
  const std::byte* bytes = nullptr;
  progress_until(
      fabric, [&] { return (bytes = fabric.acquire(rank, range)) != nullptr; }, "bytes");
  std::vector<std::byte> result(bytes, bytes + range.bytes);
  fabric.release(rank, range);
  return result;
}

template <class Group>
class FabricTest : public testing::Test {
 protected:
  using F = typename Group::Fabric;

  void SetUp() override {
    if constexpr (requires { Group::is_here(); }) {
      if (!Group::is_here()) GTEST_SKIP() << "this machine has none";
    }
  }

  static Group make(int size, std::uint64_t bytes = kBytes) {
    return Group(std::vector<std::uint64_t>(static_cast<std::size_t>(size), bytes));
  }

  // Every rank at once.
  static void run(Group& group, const std::function<void(F&)>& body) {
    group.run([&](int r) {
      try {
        body(group.rank(r));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << " waits in vain for: " << error.what();
      }
    });
  }
};

TYPED_TEST_SUITE(FabricTest, FabricGroups, GroupName);

TYPED_TEST(FabricTest, KnowsItsRankAndSize) {
  TypeParam group = this->make(3);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(group.rank(r).rank(), r);
    EXPECT_EQ(group.rank(r).size(), 3);
    EXPECT_GE(group.rank(r).facts().atomic_bytes, 8U);
  }
}

TYPED_TEST(FabricTest, FlagsStartAtZero) {
  TypeParam group = this->make(2);
  for (std::uint64_t offset = kFlag; offset < kBytes; offset += 4096) {
    EXPECT_EQ(group.rank(1).load_flag(0, offset), 0U);
    EXPECT_EQ(group.rank(1).load_flag(1, offset), 0U);
  }
}

TYPED_TEST(FabricTest, AFlagPublishesWhatWasCommittedBefore) {
  TypeParam group = this->make(2);
  Random random(3);
  for (std::uint64_t value = 1; value <= 60; ++value) {
    const auto bytes = static_cast<std::uint64_t>(random.between(1, 9000)) / 4 * 4;
    const auto room = static_cast<int>(kBytes - kData - bytes);
    const Range range{kData + static_cast<std::uint64_t>(random.below(room)) / 4 * 4, bytes};
    const auto data = pattern(bytes, value);
    publish(group.rank(0), range, data);
    group.rank(0).store_flag(kFlag, value);
    await_flag(group.rank(1), 0, kFlag, value);
    ASSERT_EQ(fetch(group.rank(1), 0, range), data) << bytes << " bytes at " << range.offset;
  }
}

TYPED_TEST(FabricTest, ReachesBothEndsOfASegment) {
  constexpr std::uint64_t kOdd = 3 * kPageBytes + 64;
  TypeParam group = this->make(2, kOdd);
  const Range first{kFlag + 8, 64};
  const Range last{kOdd - 64, 64};
  publish(group.rank(0), first, pattern(64, 1));
  publish(group.rank(0), last, pattern(64, 2));
  group.rank(0).store_flag(kFlag, 7);
  await_flag(group.rank(1), 0, kFlag, 7);
  EXPECT_EQ(fetch(group.rank(1), 0, first), pattern(64, 1));
  EXPECT_EQ(fetch(group.rank(1), 0, last), pattern(64, 2));
  group.rank(1).store_flag(kOdd - 8, 9);
  await_flag(group.rank(0), 1, kOdd - 8, 9);
}

// Segments differ in size: only the owner's counts.
TYPED_TEST(FabricTest, SegmentsMayDifferInSize) {
  TypeParam group({kPageBytes, 8 * kPageBytes, 2 * kPageBytes});
  const Range far_out{7 * kPageBytes, kPageBytes};
  publish(group.rank(1), far_out, pattern(kPageBytes, 5));
  group.rank(1).store_flag(kFlag, 1);
  for (const int reader : {0, 2}) {
    await_flag(group.rank(reader), 1, kFlag, 1);
    EXPECT_EQ(fetch(group.rank(reader), 1, far_out), pattern(kPageBytes, 5));
  }
}

TYPED_TEST(FabricTest, NeighbouringRangesKeepTheirBytes) {
  TypeParam group = this->make(2);
  std::vector<std::byte> all(400);
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::uint64_t place = i * 37 % 100;  // 37 and 100 have no common factor
    const auto part = pattern(4, i);
    std::memcpy(all.data() + 4 * place, part.data(), 4);
    publish(group.rank(0), {kData + 4 * place, 4}, part);
    if (i % 3 == 0) group.rank(0).store_flag(kFlag, i + 1);
  }
  group.rank(0).store_flag(kFlag, 1000);
  await_flag(group.rank(1), 0, kFlag, 1000);
  EXPECT_EQ(fetch(group.rank(1), 0, {kData, 400}), all);
}

TYPED_TEST(FabricTest, APartOfWhatWasClaimedMayBeCommitted) {
  TypeParam group = this->make(2);
  const auto data = pattern(1024, 4);
  std::memcpy(group.rank(0).claim({kData, 1024}), data.data(), 1024);
  group.rank(0).commit({kData + 128, 256}, Store::near);
  group.rank(0).store_flag(kFlag, 1);
  await_flag(group.rank(1), 0, kFlag, 1);
  const auto got = fetch(group.rank(1), 0, {kData + 128, 256});
  EXPECT_TRUE(std::equal(got.begin(), got.end(), data.begin() + 128));
}

// Callers keep the address and write there again and again.
TYPED_TEST(FabricTest, ClaimingAgainGivesTheSameMemoryWithItsBytes) {
  TypeParam group = this->make(2);
  const Range range{kData, 256};
  std::byte* first = group.rank(0).claim(range);
  std::memcpy(first, pattern(256, 1).data(), 256);
  group.rank(0).commit(range, Store::near);
  group.rank(0).store_flag(kFlag, 1);
  EXPECT_EQ(group.rank(0).claim(range), first);
  EXPECT_EQ(group.rank(0).claim({kData + 64, 8}), first + 64);
  EXPECT_EQ(std::memcmp(first, pattern(256, 1).data(), 256), 0);
}

// What is acquired before the flag is anybody's guess, but does no harm to what comes after.
TYPED_TEST(FabricTest, AcquiringTooEarlyDoesNotStick) {
  TypeParam group = this->make(2);
  const Range range{kData, 512};
  for (std::uint64_t value = 1; value <= 20; ++value) {
    (void)fetch(group.rank(1), 0, range);
    publish(group.rank(0), range, pattern(512, value));
    (void)fetch(group.rank(1), 0, range);
    group.rank(0).store_flag(kFlag, value);
    (void)fetch(group.rank(1), 0, range);
    await_flag(group.rank(1), 0, kFlag, value);
    ASSERT_EQ(fetch(group.rank(1), 0, range), pattern(512, value));
  }
}

TYPED_TEST(FabricTest, AcquiringAgainIsTheSameAcquisition) {
  TypeParam group = this->make(2);
  const Range range{kData, 128};
  publish(group.rank(0), range, pattern(128, 1));
  group.rank(0).store_flag(kFlag, 1);
  auto& reader = group.rank(1);
  await_flag(reader, 0, kFlag, 1);
  const std::byte* first = nullptr;
  progress_until(
      reader, [&] { return (first = reader.acquire(0, range)) != nullptr; }, "bytes");
  EXPECT_EQ(reader.acquire(0, range), first);
  EXPECT_EQ(std::memcmp(first, pattern(128, 1).data(), 128), 0);
  reader.release(0, range);
  EXPECT_EQ(fetch(reader, 0, range), pattern(128, 1));
}

// Nobody waits for it any more; who comes later must not be given the old bytes.
TYPED_TEST(FabricTest, AnAbandonedFetchDoesNotStick) {
  TypeParam group = this->make(2);
  auto& reader = group.rank(1);
  reader.abandon(0, {kData, 4096});  // nothing there: fine
  for (std::uint64_t value = 1; value <= 20; ++value) {
    for (std::uint64_t row = 0; row < 8; ++row) (void)reader.acquire(0, {kData + 512 * row, 512});
    for (std::uint64_t i = 0; i < value % 4; ++i) reader.progress();
    reader.abandon(0, {kData, 4096});
    publish(group.rank(0), {kData + 512, 512}, pattern(512, value));
    group.rank(0).store_flag(kFlag, value);
    await_flag(reader, 0, kFlag, value);
    ASSERT_EQ(fetch(reader, 0, {kData + 512, 512}), pattern(512, value));
  }
}

TYPED_TEST(FabricTest, AnEmptyRangeArrivesToo) {
  TypeParam group = this->make(2);
  publish(group.rank(0), {kData, 0}, {});
  group.rank(0).store_flag(kFlag, 1);
  await_flag(group.rank(1), 0, kFlag, 1);
  EXPECT_TRUE(fetch(group.rank(1), 0, {kData, 0}).empty());
}

TYPED_TEST(FabricTest, OwnBytesAndFlagsAreReadLikewise) {
  TypeParam group = this->make(2);
  publish(group.rank(0), {kData, 256}, pattern(256, 8));
  group.rank(0).store_flag(kFlag, 5);
  EXPECT_EQ(group.rank(0).load_flag(0, kFlag), 5U);
  EXPECT_EQ(fetch(group.rank(0), 0, {kData, 256}), pattern(256, 8));
}

TYPED_TEST(FabricTest, ManyRanksSeeEachOther) {
  constexpr int kRanks = 24;
  TypeParam group = this->make(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    const auto id = static_cast<std::uint64_t>(r);
    publish(group.rank(r), {kData, 640}, pattern(640, id));
    group.rank(r).store_flag(kFlag, id + 1);
  }
  for (int reader = 0; reader < kRanks; ++reader) {
    for (int r = 0; r < kRanks; ++r) {
      const auto id = static_cast<std::uint64_t>(r);
      await_flag(group.rank(reader), r, kFlag, id + 1);
      ASSERT_EQ(group.rank(reader).load_flag(r, kFlag), id + 1);
      ASSERT_EQ(fetch(group.rank(reader), r, {kData, 640}), pattern(640, id));
    }
  }
}

// Every value that a reader sees is at least the one before, and a later word never overtakes an
// earlier one.
TYPED_TEST(FabricTest, FlagsOnlyGrowAndKeepTheirOrder) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kLast = 400;
  TypeParam group = this->make(kRanks);
  this->run(group, [&](auto& fabric) {
    if (fabric.rank() == 0) {
      for (std::uint64_t value = 1; value <= kLast; ++value) {
        fabric.store_flag(kFlag, value);
        fabric.store_flag(kFlag + 64, value);
      }
      return;
    }
    std::uint64_t seen = 0;
    const auto reads = [&] {
      const std::uint64_t second = fabric.load_flag(0, kFlag + 64);
      const std::uint64_t first = fabric.load_flag(0, kFlag);
      EXPECT_GE(second, seen);
      EXPECT_GE(first, second);
      seen = second;
      return seen == kLast;
    };
    progress_until(fabric, reads, "the last flag");
  });
}

// The protocol in small: a block is rewritten only after all have read it.
TYPED_TEST(FabricTest, RanksHandBlocksOver) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kEpochs = 60;
  constexpr Range kBlock{kData - kData % 64, 2048};
  constexpr std::uint64_t kDone = kFlag + 64;
  TypeParam group = this->make(kRanks);
  this->run(group, [&](auto& fabric) {
    for (std::uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
      const auto id = static_cast<std::uint64_t>(fabric.rank());
      const auto mine = pattern(kBlock.bytes, 100 * epoch + id);
      for (int p = 0; p < kRanks; ++p) await_flag(fabric, p, kDone, epoch - 1);
      copy_with(epoch % 2 == 0 ? Store::far : Store::near, fabric.claim(kBlock), mine.data(),
                mine.size());
      fabric.work({Work::Kind::copy, mine.size()});
      fabric.commit(kBlock, Store::far);
      fabric.order(Ordering::before_flag);
      fabric.store_flag(kFlag, epoch);
      for (int p = 0; p < kRanks; ++p) {
        await_flag(fabric, p, kFlag, epoch);
        const auto theirs = pattern(kBlock.bytes, 100 * epoch + static_cast<std::uint64_t>(p));
        EXPECT_EQ(fetch(fabric, p, kBlock), theirs) << "epoch " << epoch << " of rank " << p;
      }
      fabric.store_flag(kDone, epoch);
    }
  });
}

TYPED_TEST(FabricTest, EveryoneIsLiveAtFirst) {
  TypeParam group = this->make(3);
  for (int r = 0; r < 3; ++r) {
    for (int p = 0; p < 3; ++p) EXPECT_EQ(group.rank(r).peer_state(p), PeerState::live);
  }
}

TYPED_TEST(FabricTest, LeavingAndFailingAreSeenByAll) {
  TypeParam group = this->make(4);
  group.rank(1).set_state(PeerState::left);
  group.rank(2).set_state(PeerState::failed);
  for (const int r : {0, 3}) {
    await_state(group.rank(r), 1, PeerState::left);
    await_state(group.rank(r), 2, PeerState::failed);
    EXPECT_EQ(group.rank(r).peer_state(3 - r), PeerState::live);
  }
}

// Survivors must agree on what a rank took part in: its last words count.
TYPED_TEST(FabricTest, TheLastWordsComeBeforeTheEnd) {
  for (const PeerState state : {PeerState::left, PeerState::failed}) {
    TypeParam group = this->make(3);
    for (std::uint64_t value = 1; value <= 10; ++value) group.rank(0).store_flag(kFlag, value);
    publish(group.rank(0), {kData, 64}, pattern(64, 6));
    group.rank(0).store_flag(kFlag, 11);
    group.rank(0).set_state(state);
    for (const int r : {1, 2}) {
      await_state(group.rank(r), 0, state);
      EXPECT_EQ(group.rank(r).load_flag(0, kFlag), 11U);
      EXPECT_EQ(fetch(group.rank(r), 0, {kData, 64}), pattern(64, 6));
    }
  }
}

template <class F>
void put(F& fabric, int rank, Range range, const std::vector<std::byte>& bytes) {
  std::memcpy(fabric.claim_at(rank, range), bytes.data(), bytes.size());
  fabric.commit_at(rank, range, Store::near);
}

template <class F>
std::vector<std::byte> inbox(F& fabric, int source, Range range) {
  const std::byte* bytes = nullptr;
  progress_until(
      fabric, [&] { return (bytes = fabric.incoming(source, range)) != nullptr; }, "rows");
  std::vector<std::byte> result(bytes, bytes + range.bytes);
  fabric.taken(source, range);
  return result;
}

// Rows one behind the other, apart, and back; of several ranks side by side.
TYPED_TEST(FabricTest, ASignalPublishesWhatWasPutIntoAnInbox) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kRow = 512;
  TypeParam group = this->make(kRanks);
  for (std::uint64_t value = 1; value <= 20; ++value) {
    for (const int source : {0, 2}) {
      auto& fabric = group.rank(source);
      const auto first = static_cast<std::uint64_t>(source) * 16;
      for (const std::uint64_t row : {3, 4, 5, 9, 1, 2}) {
        put(fabric, 1, {(first + row) * kRow, kRow}, pattern(kRow, 100 * value + first + row));
      }
      fabric.order(Ordering::before_flag);
      fabric.signal(1, kFlag, value);
    }
    for (const int source : {0, 2}) {
      const auto first = static_cast<std::uint64_t>(source) * 16;
      await_flag(group.rank(1), source, kFlag, value);
      for (const std::uint64_t row : {1, 2, 3, 4, 5, 9}) {
        ASSERT_EQ(inbox(group.rank(1), source, {(first + row) * kRow, kRow}),
                  pattern(kRow, 100 * value + first + row))
            << "row " << row << " of rank " << source << ", " << value;
      }
    }
  }
}

TYPED_TEST(FabricTest, AFlagPublishesInboxesToo) {
  constexpr std::uint64_t kMany = 48 * 1024;
  TypeParam group = this->make(3);
  for (std::uint64_t value = 1; value <= 10; ++value) {
    for (const int to : {1, 2}) {
      put(group.rank(0), to, {kData, kMany - kData}, pattern(kMany - kData, value + 50));
    }
    group.rank(0).order(Ordering::before_flag);
    group.rank(0).store_flag(kFlag, value);
    for (const int to : {1, 2}) {
      await_flag(group.rank(to), 0, kFlag, value);
      ASSERT_EQ(inbox(group.rank(to), 0, {kData, kMany - kData}),
                pattern(kMany - kData, value + 50));
    }
  }
}

// Also what was put after an earlier question that nobody waited for.
TYPED_TEST(FabricTest, FlushedMeansThatAllOfItIsThere) {
  TypeParam group = this->make(2);
  auto& fabric = group.rank(0);
  for (std::uint64_t value = 1; value <= 30; ++value) {
    const auto first = pattern(8192, value);
    const auto second = pattern(16384, value + 100);
    put(fabric, 1, {kData, first.size()}, first);
    fabric.order(Ordering::before_flag);
    (void)fabric.flushed(1);
    put(fabric, 1, {kData + 16384, second.size()}, second);
    fabric.order(Ordering::before_flag);
    progress_until(
        fabric, [&] { return fabric.flushed(1); }, "flush");
    ASSERT_EQ(inbox(group.rank(1), 0, {kData, first.size()}), first);
    ASSERT_EQ(inbox(group.rank(1), 0, {kData + 16384, second.size()}), second);
    fabric.signal(1, kFlag, value);
    await_flag(group.rank(1), 0, kFlag, value);
  }
}

TYPED_TEST(FabricTest, ReplicatedBytesAreThoseBeforeTheFlag) {
  TypeParam group = this->make(3);
  const Range ranges[] = {{kData, 256}, {kData + 4096, 64}};
  for (std::uint64_t value = 1; value <= 20; ++value) {
    for (const Range& range : ranges) {
      publish(group.rank(0), range, pattern(range.bytes, value + range.offset));
    }
    for (const int to : {1, 2}) group.rank(0).replicate(to, ranges);
    group.rank(0).store_flag(kFlag, value);
    for (const int to : {1, 2}) {
      await_flag(group.rank(to), 0, kFlag, value);
      for (const Range& range : ranges) {
        ASSERT_EQ(fetch(group.rank(to), 0, range), pattern(range.bytes, value + range.offset));
      }
    }
  }
}

// Bytes that were being fetched for somebody else must not come over those of another range.
TYPED_TEST(FabricTest, AnAbandonedFetchDoesNotComeOverLaterOnes) {
  TypeParam group = this->make(2);
  auto& reader = group.rank(1);
  for (std::uint64_t value = 1; value <= 40; ++value) {
    (void)reader.acquire(0, {kData, 8192});
    reader.abandon(0, {kData, 8192});
    publish(group.rank(0), {kData + 1024, 512}, pattern(512, value));
    group.rank(0).store_flag(kFlag, value);
    await_flag(reader, 0, kFlag, value);
    const std::byte* bytes = nullptr;
    progress_until(
        reader,
        [&] {
          return (bytes = reader.acquire(0, {kData + 1024, 512})) != nullptr;
        },
        "bytes");
    for (int i = 0; i < 20; ++i) reader.progress();
    ASSERT_EQ(std::memcmp(bytes, pattern(512, value).data(), 512), 0) << value;
    reader.release(0, {kData + 1024, 512});
  }
}

}  // namespace
}  // namespace ubep::test
