#include "sim/memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ubep::sim {
namespace {

constexpr std::uint64_t kBytes = 4096;
constexpr std::uint64_t kData = 1024;  // where data lies in a segment
constexpr std::uint64_t kFlag = 256;
constexpr Time kLatency = 100 * kNanosecond;
constexpr int kSeeds = 100;

MemoryOptions options_of(int ranks, bool weak, std::uint64_t seed = 1) {
  MemoryOptions options;
  options.segment_bytes.assign(static_cast<std::size_t>(ranks), kBytes);
  options.inbox_bytes.assign(static_cast<std::size_t>(ranks), kBytes);
  options.weak = weak;
  options.delay = kMicrosecond;
  options.seed = seed;
  return options;
}

// A memory whose time is moved on by hand; the first lane of each rank stores.
class Bench {
 public:
  explicit Bench(const MemoryOptions& options)
      : memory(queue_, options, [this](int rank, Time at) { told.emplace_back(rank, at); }),
        loose(options.segment_bytes.size()) {}

  Time now() const { return queue_.now(); }
  void pass(Time time) { (void)queue_.skip_to(queue_.now() + time); }

  void commit(int rank, Range range, int value, Store store = Store::near) {
    std::memset(memory.own(rank) + range.offset, value, range.bytes);
    memory.commit(rank, range, store, lane(rank));
  }
  std::uint64_t put(int rank, int peer, Range range, int value, Store store = Store::near) {
    std::memset(memory.outgoing(rank, peer) + range.offset, value, range.bytes);
    return memory.put(rank, peer, range, store, lane(rank));
  }
  void order(int rank) { memory.order(rank, lane(rank)); }
  void flag(int rank, std::uint64_t value, int peer = -1, std::uint64_t offset = kFlag) {
    memory.store_flag(rank, peer, offset, value, [](int) { return kLatency; });
  }
  std::uint64_t load(int rank, int peer, std::uint64_t offset = kFlag) {
    return memory.load_flag(rank, peer, offset);
  }
  // How many bytes that `rank` sees of `peer` have this value.
  std::int64_t count(int rank, int peer, Range range, int value) {
    memory.absorb(rank);
    const std::byte* bytes = memory.seen(rank, peer) + range.offset;
    return std::count(bytes, bytes + range.bytes, static_cast<std::byte>(value));
  }
  std::int64_t count_inbox(int rank, Range range, int value) {
    memory.absorb(rank);
    const std::byte* bytes = memory.inbox(rank) + range.offset;
    return std::count(bytes, bytes + range.bytes, static_cast<std::byte>(value));
  }

 private:
  std::vector<Loose>& lane(int rank) { return loose[static_cast<std::size_t>(rank)]; }
  EventQueue queue_;

 public:
  Memory memory;
  std::vector<std::pair<int, Time>> told;
  std::vector<std::vector<Loose>> loose;
};

TEST(MemoryTest, StrongStoresAreSeenAtOnceAndFlagsAfterTheirWay) {
  Bench s(options_of(3, false));
  s.commit(0, {kData, 100}, 7);
  s.commit(0, {kData + 100, 100}, 8, Store::far);
  EXPECT_EQ(s.count(1, 0, {kData, 100}, 7), 100);
  EXPECT_EQ(s.count(2, 0, {kData + 100, 100}, 8), 100);
  s.flag(0, 5);
  EXPECT_EQ(s.load(0, 0), 5U);
  s.pass(kLatency - 1);
  EXPECT_EQ(s.load(1, 0), 0U);
  s.pass(1);
  EXPECT_EQ(s.load(1, 0), 5U);
  EXPECT_EQ(s.load(2, 0), 5U);
  EXPECT_EQ(s.load(2, 1), 0U);
  EXPECT_EQ(s.told, (std::vector<std::pair<int, Time>>{{1, kLatency}, {2, kLatency}}));
}

TEST(MemoryTest, ASignalReachesOneRank) {
  for (const bool weak : {false, true}) {
    Bench s(options_of(3, weak));
    s.flag(0, 5, 2);
    s.pass(kLatency + kMicrosecond);
    EXPECT_EQ(s.load(2, 0), 5U);
    EXPECT_EQ(s.load(1, 0), 0U);
    EXPECT_EQ(s.told.size(), 1U);
  }
}

TEST(MemoryTest, FlagsKeepTheirOrder) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Bench s(options_of(2, true, seed));
    for (std::uint64_t i = 1; i <= 20; ++i) {
      s.flag(0, i, -1, kFlag + 8 * i);
      s.flag(0, i);
      s.pass(10 * kNanosecond);
      const std::uint64_t seen = s.load(1, 0);
      if (seen == 0) continue;
      EXPECT_EQ(s.load(1, 0, kFlag + 8 * seen), seen);
    }
    s.pass(kLatency + kMicrosecond);
    EXPECT_EQ(s.load(1, 0), 20U);
  }
}

TEST(MemoryTest, WhatIsNotCommittedNeverAppears) {
  Bench s(options_of(2, true));
  std::memset(s.memory.own(0) + kData, 7, 100);
  s.commit(0, {kData + 40, 20}, 8);
  s.flag(0, 1);
  s.pass(10 * kMicrosecond);
  EXPECT_EQ(s.load(1, 0), 1U);
  EXPECT_EQ(s.count(1, 0, {kData, 100}, 8), 20);
  EXPECT_EQ(s.count(1, 0, {kData, 100}, 0), 80);
}

// Later changes of the own memory do not reach what was committed before.
TEST(MemoryTest, ACommitIsWhatTheBytesWere) {
  Bench s(options_of(2, true));
  s.commit(0, {kData, 100}, 7);
  std::memset(s.memory.own(0) + kData, 9, 100);
  s.pass(10 * kMicrosecond);
  EXPECT_EQ(s.count(1, 0, {kData, 100}, 7), 100);
}

// What a reader saw before and with the flag.
struct Sights {
  int torn = 0;    // some bytes and not all of them, before the flag
  int early = 0;   // the flag, and not all bytes
  int before = 0;  // all bytes before the flag
};

// One commit (or put) and a flag, watched until both are there.
template <class Body>
Sights watch(const MemoryOptions& options, std::int64_t bytes, Body&& body) {
  Sights sights;
  MemoryOptions seeded = options;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    seeded.seed = seed;
    Bench s(seeded);
    body(s);
    bool torn = false, early = false, before = false;
    for (int step = 0; step < 500; ++step, s.pass(5 * kNanosecond)) {
      const bool flag = s.load(1, 0) != 0;  // acquires: nothing is read before it
      const std::int64_t seen = s.count(1, 0, {kData, kBytes - kData}, 7);
      torn |= !flag && seen != 0 && seen != bytes;
      early |= flag && seen != bytes;
      before |= !flag && seen == bytes;
    }
    EXPECT_NE(s.load(1, 0), 0U);
    EXPECT_EQ(s.count(1, 0, {kData, kBytes - kData}, 7), bytes);
    sights.torn += torn;
    sights.early += early;
    sights.before += before;
  }
  return sights;
}

TEST(MemoryTest, AFlagNeverAppearsBeforeWhatWasStoredBeforeIt) {
  const Sights sights = watch(options_of(2, true), 300, [](Bench& s) {
    s.commit(0, {kData, 100}, 7);
    s.pass(50 * kNanosecond);
    s.commit(0, {kData + 500, 200}, 7);
    s.flag(0, 1);
  });
  EXPECT_EQ(sights.early, 0);
  EXPECT_GT(sights.torn, kSeeds / 2);
  EXPECT_GT(sights.before, 0);  // a flag may be late
}

TEST(MemoryTest, FarStoresNeedAnOrder) {
  const auto body = [](bool orders) {
    return [orders](Bench& s) {
      s.commit(0, {kData, 300}, 7, Store::far);
      if (orders) s.order(0);
      s.flag(0, 1);
    };
  };
  EXPECT_GT(watch(options_of(2, true), 300, body(false)).early, kSeeds / 2);
  EXPECT_EQ(watch(options_of(2, true), 300, body(true)).early, 0);
}

// An order() of one lane covers nothing of another.
TEST(MemoryTest, AnOrderCoversItsOwnLane) {
  const Sights sights = watch(options_of(2, true), 300, [](Bench& s) {
    s.commit(0, {kData, 300}, 7, Store::far);
    std::vector<Loose> other;
    s.memory.order(0, other);
    s.flag(0, 1);
  });
  EXPECT_GT(sights.early, kSeeds / 2);
}

TEST(MemoryTest, LosesRelease) {
  MemoryOptions options = options_of(2, true);
  options.loses_release = true;
  const Sights sights = watch(options, 300, [](Bench& s) {
    s.commit(0, {kData, 300}, 7);
    s.flag(0, 1);
  });
  EXPECT_GT(sights.early, kSeeds / 2);
}

TEST(MemoryTest, UnitsAppearAtOnce) {
  MemoryOptions options = options_of(2, true);
  const auto body = [](Bench& s) {
    s.commit(0, {kData, 256}, 7);
    s.flag(0, 1);
  };
  options.unit = 256;
  EXPECT_EQ(watch(options, 256, body).torn, 0);
  options.unit = 128;
  EXPECT_GT(watch(options, 256, body).torn, kSeeds / 2);
  // Units are aligned: bytes that lie across the border of one are torn.
  options.unit = 256;
  EXPECT_GT(watch(options, 256,
                  [](Bench& s) {
                    s.commit(0, {kData + 128, 256}, 7);
                    s.flag(0, 1);
                  })
                .torn,
            kSeeds / 2);
}

TEST(MemoryTest, InOrderUnitsAppearInTheOrderOfTheirStores) {
  for (const bool in_order : {true, false}) {
    int reordered = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      MemoryOptions options = options_of(2, true, seed);
      options.in_order = in_order;
      Bench s(options);
      for (int i = 0; i < 4; ++i) s.commit(0, {kData + 100 * static_cast<unsigned>(i), 100}, 7);
      for (int step = 0; step < 300; ++step, s.pass(5 * kNanosecond)) {
        s.memory.absorb(1);
        const std::byte* bytes = s.memory.seen(1, 0) + kData;
        const std::byte* end = std::find(bytes, bytes + 400, std::byte{0});
        if (std::count(end, bytes + 400, std::byte{7}) != 0) ++reordered;
      }
    }
    EXPECT_EQ(reordered == 0, in_order);
  }
}

TEST(MemoryTest, TwoCommitsOfTheSameBytesKeepTheirOrder) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Bench s(options_of(2, true, seed));
    std::vector<std::byte> last(100);
    for (int i = 1; i <= 10; ++i) {
      const auto first = static_cast<std::uint64_t>(i % 3 * 20);
      s.commit(0, {kData + first, 60}, i, i % 2 == 0 ? Store::near : Store::far);
      for (int step = 0; step < 10; ++step, s.pass(10 * kNanosecond)) {
        s.memory.absorb(1);
        const std::byte* bytes = s.memory.seen(1, 0) + kData;
        for (std::size_t b = 0; b < last.size(); ++b) {
          ASSERT_GE(bytes[b], last[b]) << "an older value comes back at " << b;
          last[b] = bytes[b];
        }
      }
    }
    s.pass(kMicrosecond);
    EXPECT_EQ(s.count(1, 0, {kData, 100}, 10), 60);
  }
}

TEST(MemoryTest, AFlagWaitsForPutsToHaveLanded) {
  for (const bool weak : {false, true}) {
    Bench s(options_of(3, weak));
    const std::uint64_t first = s.put(0, 1, {0, 100}, 7);
    const std::uint64_t second = s.put(0, 1, {100, 100}, 7);
    s.flag(0, 1);
    const std::uint64_t third = s.put(0, 1, {200, 100}, 7);
    s.flag(0, 2);
    s.pass(10 * kMicrosecond);
    EXPECT_EQ(s.load(1, 0), 0U);
    EXPECT_EQ(s.load(2, 0), 2U);  // nothing was put there
    s.memory.land(third);
    s.memory.land(second);
    s.pass(10 * kMicrosecond);
    EXPECT_EQ(s.load(1, 0), 0U);
    EXPECT_EQ(s.count_inbox(1, {0, 300}, 7), 200);
    s.memory.land(first);
    for (int step = 0; step < 1000; ++step, s.pass(2 * kNanosecond)) {
      if (s.load(1, 0) == 0) continue;
      EXPECT_EQ(s.count_inbox(1, {0, 300}, 7), 300);
    }
    EXPECT_EQ(s.load(1, 0), 2U);
    EXPECT_EQ(s.count_inbox(2, {0, kBytes}, 0), std::int64_t{kBytes});
  }
}

TEST(MemoryTest, AFlagWaitsForFarPutsThatAnOrderCovers) {
  for (const bool lands_first : {false, true}) {
    for (const bool orders : {false, true}) {
      int early = 0;
      for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        Bench s(options_of(2, true, seed));
        const std::uint64_t put = s.put(0, 1, {0, 100}, 7, Store::far);
        if (lands_first) s.memory.land(put);
        if (orders) s.order(0);
        s.flag(0, 1);
        s.pass(500 * kNanosecond);
        early += s.load(1, 0) != 0 && s.count_inbox(1, {0, 100}, 7) != 100;
        if (!lands_first) s.memory.land(put);
        s.pass(10 * kMicrosecond);
        EXPECT_EQ(s.load(1, 0), 1U);
      }
      EXPECT_EQ(early != 0, !orders) << lands_first;
    }
  }
}

TEST(MemoryTest, ALaterPutStaysAlthoughAnEarlierOneLandsAfterIt) {
  for (const bool weak : {false, true}) {
    Bench s(options_of(3, weak));
    const std::uint64_t a = s.put(0, 2, {0, 100}, 1);
    const std::uint64_t b = s.put(1, 2, {50, 100}, 2);  // another sender
    s.memory.land(b);
    s.memory.land(a);
    s.pass(10 * kMicrosecond);
    EXPECT_EQ(s.count_inbox(2, {0, 50}, 1), 50);
    EXPECT_EQ(s.count_inbox(2, {50, 100}, 2), 100);
  }
}

// Bytes hold the number of the put that wrote them; they never go back, and the last one stays.
TEST(MemoryTest, PutsToTheSameBytesNeverChangeTheirOrder) {
  for (std::uint64_t seed = 1; seed <= 4 * kSeeds; ++seed) {
    Random random(seed);
    Bench s(options_of(3, seed % 2 == 0, seed));
    std::vector<std::byte> expected(256), last(256);
    std::vector<std::uint64_t> under_way;
    const auto look = [&] {
      s.memory.absorb(2);
      for (std::size_t b = 0; b < last.size(); ++b) {
        ASSERT_GE(s.memory.inbox(2)[b], last[b]) << "seed " << seed << " at " << b;
        last[b] = s.memory.inbox(2)[b];
      }
    };
    for (int i = 1; i <= 40 || !under_way.empty();) {
      if (i <= 40 && !random.one_in(3)) {
        const Range range{random.up_to(200), 1 + random.up_to(55)};
        const Store store = random.one_in(2) ? Store::near : Store::far;
        under_way.push_back(s.put(random.one_in(2) ? 1 : 0, 2, range, i, store));
        std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(range.offset), range.bytes,
                    static_cast<std::byte>(i++));
      } else if (!under_way.empty()) {
        const auto which =
            under_way.begin() + static_cast<std::ptrdiff_t>(random.up_to(under_way.size() - 1));
        s.memory.land(*which);
        under_way.erase(which);
      }
      if (random.one_in(4)) s.order(0);
      s.pass(random.up_to(100 * kNanosecond));
      look();
      if (testing::Test::HasFatalFailure()) return;
    }
    s.pass(10 * kMicrosecond);
    look();
    ASSERT_EQ(last, expected) << "seed " << seed;
  }
}

TEST(MemoryTest, NumbersOfPutsAreUsedAgain) {
  Bench s(options_of(2, true));
  std::uint64_t most = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t near = s.put(0, 1, {0, 16}, 1);
    const std::uint64_t far = s.put(0, 1, {16, 16}, 1, Store::far);
    most = std::max({most, near, far});
    if (i % 2 == 0) s.order(0);
    s.memory.land(far);
    s.memory.land(near);
    s.order(0);
    s.pass(kMicrosecond);
  }
  EXPECT_LE(most, 2U);
}

TEST(MemoryTest, HasAllOfAPeerWhenNothingIsOnItsWay) {
  Bench s(options_of(3, true));
  EXPECT_TRUE(s.memory.has_all_of(1, 0));
  s.flag(0, 1);
  EXPECT_FALSE(s.memory.has_all_of(1, 0));
  s.pass(10 * kMicrosecond);
  EXPECT_TRUE(s.memory.has_all_of(1, 0));
  s.commit(0, {kData, 100}, 7, Store::far);
  EXPECT_FALSE(s.memory.has_all_of(1, 0));
  s.pass(10 * kMicrosecond);
  EXPECT_TRUE(s.memory.has_all_of(1, 0));
  const std::uint64_t put = s.put(0, 2, {0, 100}, 7, Store::far);
  s.pass(10 * kMicrosecond);
  EXPECT_FALSE(s.memory.has_all_of(1, 0));
  s.memory.land(put);
  EXPECT_FALSE(s.memory.has_all_of(1, 0));
  s.pass(10 * kMicrosecond);
  EXPECT_TRUE(s.memory.has_all_of(1, 0));
}

TEST(MemoryTest, RowsThatDoNotMoveHaveAddresses) {
  MemoryOptions options = options_of(2, false);
  options.moves_rows = false;
  Bench s(options);
  EXPECT_EQ(s.memory.outgoing(0, 1), s.memory.inbox(1));
  const std::uint64_t put = s.memory.put(0, 1, {0, 100}, Store::near, s.loose[0]);
  s.flag(0, 1);
  s.pass(kMicrosecond);
  EXPECT_EQ(s.load(1, 0), 0U);
  s.memory.land(put);
  EXPECT_EQ(s.load(1, 0), 1U);
}

}  // namespace
}  // namespace ubep::sim
