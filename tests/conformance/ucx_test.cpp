// What the concept asks of UcxFabric alone, while its way to another rank is full: nothing moves on
// but what these tests move.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabric/ucx/transport.hpp"
#include "support/fabric_groups.hpp"
#include "ubep/status.hpp"

namespace ubep::test {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;
constexpr std::uint64_t kFlag = kFabricHeaderBytes;
constexpr std::uint64_t kTold = 64 * 1024;  // of each segment
constexpr std::uint64_t kLine = 4096;       // of what is told
constexpr std::uint64_t kLoad = 32 * kMiB;  // far more than a connection takes at once
constexpr std::uint64_t kBytes = kLoad + kMiB;

class UcxTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_ucx()) GTEST_SKIP() << "there is no UCX";
  }

  static std::vector<std::uint64_t> sizes(int ranks) {
    return std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), kBytes);
  }

  static void fill(std::byte* at, std::uint64_t bytes, int value) {
    std::memset(at, value, static_cast<std::size_t>(bytes));
  }
  static bool holds(const std::byte* at, std::uint64_t bytes, int value) {
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (at[i] != static_cast<std::byte>(value)) return false;
    }
    return true;
  }

  static void load(UcxFabric& fabric, int to, int value) {
    fill(fabric.claim_at(to, {0, kLoad}), kLoad, value);
    fabric.commit_at(to, {0, kLoad}, Store::near);
    fabric.order(Ordering::before_flag);
  }

  template <class Ready>
  static void await(Ready ready) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!ready()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
};

TEST_F(UcxTest, WhatIsToldNeedsNoFetch) {
  UcxGroup group(sizes(2), kTold);
  auto& from = group.rank(0);
  auto& to = group.rank(1);
  const Range line{kLine, 200};
  fill(from.claim(line), line.bytes, 7);
  from.replicate(1, {&line, 1});
  from.store_flag(kFlag, 1);
  await([&] { return to.load_flag(0, kFlag) == 1; });
  const std::byte* told = to.acquire(0, line);
  ASSERT_NE(told, nullptr);
  EXPECT_TRUE(holds(told, line.bytes, 7));
}

// The engine writes the next rank's bits to the same place.
TEST_F(UcxTest, AShortRangeIsToldAsItWas) {
  UcxGroup group(sizes(3), kTold);
  auto& from = group.rank(0);
  const Range line{kLine, 8};
  group.pause();
  for (int r = 1; r < 3; ++r) load(from, r, r);
  for (int r = 1; r < 3; ++r) {
    fill(from.claim(line), line.bytes, 10 + r);
    from.replicate(r, {&line, 1});
    from.signal(r, kFlag, 1);
  }
  fill(from.claim(line), line.bytes, 99);
  group.resume();
  for (int r = 1; r < 3; ++r) {
    auto& to = group.rank(r);
    await([&] { return to.load_flag(0, kFlag) == 1; });
    EXPECT_TRUE(holds(to.acquire(0, line), line.bytes, 10 + r)) << "rank " << r;
    EXPECT_TRUE(holds(to.inbox({0, kLoad}), kLoad, r));
  }
}

// An op line is told with the word as it was: the new one comes behind all that it announces.
TEST_F(UcxTest, AWordDoesNotTravelWithTheLineAroundIt) {
  UcxGroup group(sizes(2), kTold);
  auto& from = group.rank(0);
  auto& to = group.rank(1);
  const Range line{kLine, 64};
  group.pause();
  from.replicate(1, {&line, 1});
  load(from, 1, 1);
  from.replicate(1, {&line, 1});
  for (int i = 0; i < 2; ++i) load(from, 1, 2);  // between the line and its word
  from.store_flag(kLine, 5);
  bool early = false;
  await([&] {
    (void)from.progress();
    (void)to.progress();
    const bool seen = to.load_flag(0, kLine) == 5;
    if (seen && !holds(to.inbox({0, kLoad}), kLoad, 2)) early = true;
    return seen;
  });
  EXPECT_FALSE(early);
}

TEST_F(UcxTest, AFlushCoversWhatCameAfterAnEarlierQuestion) {
  UcxGroup group(sizes(2));
  auto& from = group.rank(0);
  auto& to = group.rank(1);
  group.pause();
  load(from, 1, 1);
  EXPECT_FALSE(from.flushed(1));
  load(from, 1, 2);
  const Range last{kLoad, 512};
  fill(from.claim_at(1, last), last.bytes, 3);
  from.commit_at(1, last, Store::near);
  await([&] {
    (void)from.progress();
    if (from.flushed(1)) return true;
    (void)to.progress();
    return false;
  });
  EXPECT_TRUE(holds(to.inbox({0, kLoad}), kLoad, 2));
  EXPECT_TRUE(holds(to.inbox(last), last.bytes, 3));
}

// Of the same bytes, by other ranges.
TEST_F(UcxTest, NothingIsFetchedWhileOldBytesAreOnTheirWay) {
  UcxGroup group(sizes(2));
  auto& owner = group.rank(0);
  auto& reader = group.rank(1);
  group.pause();
  const Range all{kTold, 16 * kMiB};
  const Range part{kTold + 8 * kMiB, 512};
  ASSERT_EQ(reader.acquire(0, all), nullptr);
  reader.abandon(0, all);
  EXPECT_EQ(reader.acquire(0, part), nullptr);
  reader.abandon(0, part);
  fill(owner.claim(part), part.bytes, 4);
  group.resume();
  const std::byte* bytes = nullptr;
  await([&] { return (bytes = reader.acquire(0, part)) != nullptr; });
  EXPECT_TRUE(holds(bytes, part.bytes, 4));
  group.pause();
  for (int i = 0; i < 2000; ++i) {
    (void)owner.progress();
    (void)reader.progress();
  }
  EXPECT_TRUE(holds(bytes, part.bytes, 4));
}

// Whoever leaves has fetches and rows under way; the other side is gone before they are.
TEST_F(UcxTest, LeavesWithTransfersUnderWay) {
  UcxGroup group(sizes(2));
  group.pause();
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(group.rank(r).acquire(1 - r, {0, kLoad}), nullptr);
    load(group.rank(r), 1 - r, 1);
    (void)group.rank(r).flushed(1 - r);
    group.rank(r).store_flag(kFlag, 1);
  }
}

// --- what comes over the network ---

// Two transports of two windows each, of which the second may only be read; progress by hand.
class UcxTransportTest : public UcxTest {
 protected:
  static constexpr std::uint64_t kWindow = 64 * 1024;

  void connect() {
    ends_.clear();
    std::vector<std::string> told;
    for (int r = 0; r < 2; ++r) {
      ends_.push_back(std::make_unique<UcxTransport>(r, 2));
      told.push_back(ends_.back()->describe());
    }
    for (std::size_t r = 0; r < 2; ++r) {
      std::byte* memory = memory_[r].data();
      ends_[r]->connect(1 - static_cast<int>(r), told[1 - r],
                        {{memory, kWindow, true}, {memory + kWindow, kWindow, false}});
    }
  }
  // Until `end` thinks ill of the other, or has what it should have.
  template <class Ready>
  void move_until(Ready ready) {
    for (const auto& end : ends_) end->post();
    await([&] {
      for (const auto& end : ends_) (void)end->progress();
      return ready();
    });
  }

  std::vector<std::byte> memory_[2] = {std::vector<std::byte>(4 * kWindow),
                                       std::vector<std::byte>(4 * kWindow)};
  std::vector<std::unique_ptr<UcxTransport>> ends_;
};

TEST_F(UcxTransportTest, NothingIsStoredBesideAWindow) {
  struct {
    std::size_t window;
    std::uint64_t offset;
    std::uint64_t bytes;
  } const places[] = {
      {0, kWindow - 511, 512}, {0, kWindow, 8}, {0, ~0ULL - 100, 512}, {0, 1, kWindow}, {1, 0, 64},
      {1, 0, 32 * 1024},       {2, 0, 64},      {~0ULL >> 32, 0, 8}};
  const std::vector<std::byte> bytes(kWindow, std::byte{1});
  for (const auto& place : places) {
    SCOPED_TRACE(std::to_string(place.window) + ", " + std::to_string(place.offset));
    connect();
    ends_[0]->put({1, place.window, place.offset}, std::span(bytes).first(place.bytes));
    move_until([&] { return ends_[1]->failure(0) != nullptr; });
    EXPECT_TRUE(holds(memory_[1].data(), memory_[1].size(), 0));
  }
  connect();
  ends_[0]->put_word({1, 0, kWindow - 4}, 1);
  move_until([&] { return ends_[1]->failure(0) != nullptr; });
  EXPECT_TRUE(holds(memory_[1].data(), memory_[1].size(), 0));
}

TEST_F(UcxTransportTest, TheEndsOfAWindowAreInIt) {
  const std::vector<std::byte> bytes(kWindow, std::byte{1});
  connect();
  ends_[0]->put({1, 0, 0}, bytes);
  ends_[0]->put_word({1, 0, kWindow - 8}, 0x0202020202020202);
  (void)ends_[0]->flushed(1);
  move_until([&] { return ends_[0]->flushed(1); });
  EXPECT_EQ(ends_[1]->failure(0), nullptr);
  EXPECT_TRUE(holds(memory_[1].data(), kWindow - 8, 1));
  EXPECT_TRUE(holds(memory_[1].data() + kWindow - 8, 8, 2));
  EXPECT_TRUE(holds(memory_[1].data() + kWindow, kWindow, 0));
}

TEST_F(UcxTransportTest, NothingIsReadBesideAWindow) {
  for (const std::uint64_t offset : {kWindow - 96, kWindow, ~std::uint64_t{0} - 10}) {
    connect();
    int done = 0;
    ends_[0]->get({1, 1, offset}, {memory_[0].data(), 128}, &done);
    move_until([&] { return ends_[1]->failure(0) != nullptr; });
    EXPECT_EQ(done, 0);
    ends_.clear();
  }
}

TEST_F(UcxTransportTest, ADescriptionThatIsNoneIsRefused) {
  UcxTransport end(0, 2);
  EXPECT_THROW(end.connect(1, "", {}), Error);
  EXPECT_THROW(end.connect(1, "short", {}), Error);
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

std::uint64_t mapped_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(UcxTest, GroupsLeaveNothingBehind) {
  const std::vector<std::uint64_t> small(3, 256 * 1024);
  const auto live = [&] {
    UcxGroup group(small, kTold);
    group.rank(0).store_flag(kFlag, 1);
    await([&] { return group.rank(2).load_flag(0, kFlag) == 1; });
  };
  for (int i = 0; i < 10; ++i) live();
  const std::size_t files = open_files();
  const std::uint64_t bytes = mapped_bytes();
  for (int i = 0; i < 50; ++i) live();
  EXPECT_LE(open_files(), files);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // theirs grows
  EXPECT_LT(mapped_bytes(), bytes + 32 * kMiB);
#else
  (void)bytes;
#endif
}

}  // namespace
}  // namespace ubep::test
