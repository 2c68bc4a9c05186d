#include "sim/world.hpp"
#include "base/fabric_facts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/fabric_facts.hpp"
#include "tests/unit/sim/pods.hpp"

namespace ubep::sim {
namespace {

constexpr std::uint64_t kBytes = 4096;
constexpr std::uint64_t kFlag = kFabricHeaderBytes;
constexpr std::uint64_t kData = 1024;
constexpr Time kLatency = kMicrosecond;

WorldOptions options_of(int ranks, int lanes = 1) {
  WorldOptions options{.pod = flat_pod(ranks), .ranks = ranks, .lanes = lanes};
  options.pod.lane = {.issue = 10 * kNanosecond, .poll = 5 * kNanosecond};
  options.memory.segment_bytes.assign(static_cast<std::size_t>(ranks), kBytes);
  options.memory.inbox_bytes.assign(static_cast<std::size_t>(ranks), kBytes);
  return options;
}

WorldOptions options_of_chaos(int ranks, int lanes) {
  WorldOptions options = options_of(ranks, lanes);
  options.pod.jitter = 300 * kNanosecond;
  options.hesitation = 50 * kNanosecond;
  options.memory.weak = true;
  options.memory.delay = 2 * kMicrosecond;
  options.name_word = [](int, std::uint64_t offset) { return "word " + std::to_string(offset); };
  return options;
}

// Each rank stores, puts and announces; and follows what the rank before it announces.
void exchange(World& world, int rank, int rounds) {
  SimFabric& fabric = world.fabric(rank);
  const int ranks = world.options().ranks;
  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  for (int i = 1; i <= rounds; ++i) {
    const auto value = static_cast<std::uint64_t>(i);
    std::memset(fabric.claim({kData, 200}), i, 200);
    fabric.commit({kData, 200}, Store::far);
    std::memset(fabric.claim_at(next, {0, 300}), i, 300);
    fabric.commit_at(next, {0, 300}, Store::near);
    fabric.order(Ordering::before_flag);  // orders: far stores before the next rank's look
    fabric.store_flag(kFlag, value);      // publishes: to the next rank
    for (;;) {
      const std::uint64_t news = world.news(rank);
      if (fabric.load_flag(before, kFlag) >= value) break;  // acquires: of the rank before
      world.wait_for_news(rank, news);
    }
    (void)fabric.acquire(before, {kData, 200});
  }
}

struct History {
  std::uint64_t events;
  Time time;
  std::uint64_t bytes;
  std::vector<std::string> transcript;
  bool operator==(const History&) const = default;
};

History history_of(const WorldOptions& options, Time slice = kNever) {
  World world(options);
  for (int r = 0; r < options.ranks; ++r) {
    world.start(r, [&world, r] { exchange(world, r, 20); });
    for (int lane = 1; lane < options.lanes; ++lane) {
      world.start(
          r,
          [&world, r] {
            for (int i = 0; i < 50; ++i) {
              // acquires: nothing; a look in between.
              (void)world.fabric(r).load_flag(0, kFlag);
            }
          },
          5 * kMicrosecond);
    }
  }
  for (Time limit = slice; !world.run(limit); limit += slice) {
    EXPECT_FALSE(world.is_stuck());
    EXPECT_LE(world.now(), limit);
  }
  return {world.events(), world.now(), world.bytes_sent(), world.transcript()};
}

TEST(WorldTest, TheSameOptionsGiveTheSameHistory) {
  for (const bool has_links : {false, true}) {
    WorldOptions options = options_of_chaos(3, 2);
    options.has_links = has_links;
    options.fates = {{1, 100, false, 3 * kMicrosecond}};
    const History first = history_of(options);
    EXPECT_GE(first.transcript.size(), 60U);
    EXPECT_TRUE(first == history_of(options));
    EXPECT_TRUE(first == history_of(options, kMicrosecond)) << "in slices";
    WorldOptions other = options;
    other.seed = 2;
    EXPECT_NE(history_of(other).transcript, first.transcript);
    other = options;
    other.memory.seed = 2;
    EXPECT_NE(history_of(other).transcript, first.transcript);
  }
}

TEST(WorldTest, CallsTakeTheirTime) {
  WorldOptions options = options_of(2);
  World world(options);
  std::vector<Time> times;
  world.start(
      0,
      [&] {
        times.push_back(world.now());
        world.spend(7 * kNanosecond);
        times.push_back(world.now());
        (void)world.fabric(0).load_flag(1, kFlag);  // acquires: nothing
        times.push_back(world.now());
        world.fabric(0).store_flag(kFlag, 1);  // publishes: nothing
        times.push_back(world.now());
      },
      kMicrosecond);
  EXPECT_TRUE(world.run());
  EXPECT_EQ(times, (std::vector<Time>{1000 * kNanosecond, 1007 * kNanosecond, 1012 * kNanosecond,
                                      1022 * kNanosecond}));
}

// The rank's n-th call does not happen, nor any later one, in whatever lane.
TEST(WorldTest, DeathAtTheNthCallEndsAllLanes) {
  for (const std::uint64_t call : {1U, 2U, 9U, 40U}) {
    WorldOptions options = options_of_chaos(2, 3);
    options.fates = {{0, call}};
    World world(options);
    std::uint64_t before = 0, after = 0;
    int ended = 0;
    struct Counts {
      int& ended;
      ~Counts() { ++ended; }
    };
    for (int lane = 0; lane < 3; ++lane) {
      world.start(0, [&, lane] {
        const Counts counts{ended};
        for (;;) {
          ++before;
          if (lane == 0) world.fabric(0).store_flag(kFlag, before);  // publishes: nothing
          if (lane == 1) world.spend(20 * kNanosecond);
          if (lane == 2) (void)world.fabric(0).acquire(1, {kData, 100});
          ++after;
        }
      });
    }
    EXPECT_TRUE(world.run());
    EXPECT_TRUE(world.is_dead(0));
    EXPECT_FALSE(world.is_dead(1));
    // Of the calls before it, those that were under way did not return.
    EXPECT_LE(after, call - 1);
    EXPECT_LE(before - after, 3U);
    EXPECT_GE(before, call == 1 ? 1U : call / 2);  // a call may be several
    EXPECT_EQ(world.transcript().back().substr(world.transcript().back().size() - 4), "dies");
    EXPECT_GE(ended, 1);
  }
}

TEST(WorldTest, LanesThatWaitEndWhenTheirRankDies) {
  WorldOptions options = options_of(2, 5);
  options.pod.lane.window = 100;
  World world(options);
  int ended = 0;
  struct Counts {
    int& ended;
    ~Counts() { ++ended; }
  };
  world.start(0, [&] {  // for news
    const Counts counts{ended};
    world.wait_for_news(0, world.news(0));
  });
  world.start(0, [&] {  // for room in its window
    const Counts counts{ended};
    world.fabric(0).commit_at(1, {0, 200}, Store::near);
    ADD_FAILURE() << "a put returned";
  });
  world.start(0, [&] {  // for bytes
    const Counts counts{ended};
    (void)world.fabric(0).acquire(1, {kData, 1000});
  });
  world.start(
      0, [&] { world.kill(0); }, 300 * kNanosecond);
  world.start(
      0, [&] { ADD_FAILURE() << "a lane of the dead starts"; }, kMicrosecond);
  EXPECT_TRUE(world.run());
  EXPECT_EQ(ended, 3);
}

TEST(WorldTest, ADeathIsSeenAfterTheLastWords) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    WorldOptions options = options_of_chaos(2, 1);
    options.seed = options.memory.seed = seed;
    options.has_links = seed % 2 == 0;
    options.fates = {{0, 5 + seed}};
    World world(options);
    std::uint64_t last = 0;
    Time death = 0, seen = 0;
    world.start(0, [&] {
      SimFabric& fabric = world.fabric(0);
      for (int i = 1;; ++i) {
        std::memset(fabric.claim_at(1, {0, 500}), i, 500);
        death = world.now();
        fabric.commit_at(1, {0, 500}, Store::near);
        death = world.now();
        fabric.store_flag(kFlag, static_cast<std::uint64_t>(i));  // publishes: to rank 1
        last = static_cast<std::uint64_t>(i);
      }
    });
    world.start(1, [&] {
      SimFabric& fabric = world.fabric(1);
      while (fabric.peer_state(0) != PeerState::dead) {
      }
      seen = world.now();
      // acquires: the last words. One more may have been stored by the call in which it died.
      const std::uint64_t value = fabric.load_flag(0, kFlag);
      EXPECT_GE(value, last) << "seed " << seed;
      EXPECT_LE(value, last + 1);
      const std::byte* inbox = fabric.inbox({0, 500});
      EXPECT_GE(inbox[0], static_cast<std::byte>(value));
      EXPECT_EQ(std::count(inbox, inbox + 500, inbox[0]), 500);
      world.spend(kMicrosecond * 20);
      EXPECT_EQ(fabric.load_flag(0, kFlag), value);  // acquires: nothing came after
    });
    EXPECT_TRUE(world.run());
    EXPECT_TRUE(world.is_dead(0));
    EXPECT_GT(seen, death + (last != 0 ? kLatency / 2 : 0)) << "seed " << seed;
  }
}

TEST(WorldTest, AStalledRankStandsStill) {
  for (const bool one_lane : {false, true}) {
    WorldOptions options = options_of(1, 2);
    options.fates = {{0, 5, false, 100 * kMicrosecond, one_lane}};
    World world(options);
    std::vector<Time> longest(2);
    for (std::size_t lane = 0; lane < 2; ++lane) {
      // Lane 0 makes the fifth call.
      world.start(
          0,
          [&, lane] {
            Time before = world.now();
            for (int i = 0; i < 30; ++i) {
              world.spend(10 * kNanosecond);
              longest[lane] = std::max(longest[lane], world.now() - before);
              before = world.now();
            }
          },
          lane * kNanosecond);
    }
    EXPECT_TRUE(world.run());
    EXPECT_GE(longest[0], 100 * kMicrosecond);
    EXPECT_EQ(longest[1] >= 99 * kMicrosecond, !one_lane);
  }
}

TEST(WorldTest, AStalledRankDoesNotWakeForNews) {
  World world(options_of(2));
  Time woken = 0;
  world.start(0, [&] {
    world.wait_for_news(0, world.news(0));
    woken = world.now();
  });
  world.start(
      1,
      [&] {
        world.stall(0, 50 * kMicrosecond);
        world.fabric(1).store_flag(kFlag, 1);  // publishes: news for rank 0
      },
      kMicrosecond);
  EXPECT_TRUE(world.run());
  EXPECT_EQ(woken, 50 * kMicrosecond);
}

TEST(WorldTest, NewsWakeWhoWaitsForThem) {
  World world(options_of(2));
  std::vector<Time> woken;
  world.start(0, [&] {
    const std::uint64_t old = world.news(0);
    world.wait_for_news(0, old);
    woken.push_back(world.now());
    world.wait_for_news(0, old);  // there were some since
    woken.push_back(world.now());
    world.wait_for_news(0, world.news(0));
    woken.push_back(world.now());
    world.wait_for_news(0, world.news(0), 20 * kMicrosecond);
    woken.push_back(world.now());
    // The time-out of a wait that is over wakes nobody.
    world.wait_for_news(0, world.news(0), 25 * kMicrosecond);
    woken.push_back(world.now());
    world.wait_for_news(0, world.news(0), 40 * kMicrosecond);
    woken.push_back(world.now());
  });
  world.start(1, [&] {
    world.fabric(1).store_flag(kFlag, 1);  // publishes: news for rank 0
    world.spend(9990 * kNanosecond);
    world.stir(0);
    world.stir(1);
    world.spend(12 * kMicrosecond);
    world.stir(0);
  });
  EXPECT_TRUE(world.run());
  const Time arrival = 10 * kNanosecond + kLatency;
  EXPECT_EQ(woken, (std::vector<Time>{arrival, arrival, 10 * kMicrosecond, 20 * kMicrosecond,
                                      22 * kMicrosecond, 40 * kMicrosecond}));
}

TEST(WorldTest, ArrivalsWakeOneLaneAndStirWakesAll) {
  World world(options_of(2, 3));
  std::vector<int> order;
  for (int lane = 0; lane < 3; ++lane) {
    world.start(0, [&, lane] {
      world.spend(static_cast<Time>(10 - lane) * kNanosecond);  // the last lane waits first
      world.wait_for_news(0, world.news(0));
      order.push_back(lane);
    });
  }
  world.start(1, [&] { world.fabric(1).store_flag(kFlag, 1); });  // publishes: news for rank 0
  EXPECT_FALSE(world.run(5 * kMicrosecond));
  EXPECT_EQ(order, (std::vector<int>{0}));
  EXPECT_TRUE(world.is_stuck());
  world.stir(0);
  EXPECT_FALSE(world.is_stuck());
  EXPECT_TRUE(world.run());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(WorldTest, WhoWaitsForNothingIsStuck) {
  World world(options_of(2));
  world.start(0, [&] { world.wait_for_news(0, world.news(0)); });
  world.start(1, [&] { world.spend(kMicrosecond); });
  EXPECT_FALSE(world.is_stuck());
  EXPECT_FALSE(world.run());
  EXPECT_TRUE(world.is_stuck());
}

TEST(WorldTest, ALaneThatSpinsForEverDoesNotHoldTheLimitUp) {
  World world(options_of(1));
  std::uint64_t turns = 0;
  world.start(0, [&] {
    for (;; ++turns) {
      if (turns == 1'000'000) throw std::runtime_error("spins on");
      world.spend(kNanosecond);
    }
  });
  EXPECT_FALSE(world.run(kMicrosecond));
  EXPECT_EQ(turns, 1000U);
  EXPECT_EQ(world.now(), kMicrosecond);
  EXPECT_FALSE(world.run(2 * kMicrosecond));
  EXPECT_EQ(turns, 2000U);
  EXPECT_FALSE(world.is_stuck());
}

TEST(WorldTest, AnExceptionOfALaneComesOutOfRun) {
  int ended = 0;
  struct Counts {
    int& ended;
    ~Counts() { ++ended; }
  };
  {
    WorldOptions options = options_of_chaos(2, 3);
    options.pod.lane.window = 100;
    World world(options);
    world.start(0, [&] {
      const Counts counts{ended};
      world.spend(10 * kMicrosecond);
      throw std::out_of_range("of a lane");
    });
    world.start(0, [&] {
      const Counts counts{ended};
      for (;;) world.spend(kNanosecond);
    });
    world.start(0, [&] {
      const Counts counts{ended};
      world.wait_for_news(0, world.news(0));
      ADD_FAILURE() << "a lane goes on after the end";
    });
    world.start(1, [&] {
      const Counts counts{ended};
      for (int i = 0;; ++i) world.fabric(1).commit_at(0, {0, 200}, Store::far);
    });
    world.start(
        1, [&] { ADD_FAILURE() << "a lane starts after the end"; }, kNever - 1);
    EXPECT_THROW(world.run(), std::out_of_range);
    EXPECT_EQ(ended, 1);
    world.end();
    EXPECT_EQ(ended, 4);
  }
  EXPECT_EQ(ended, 4);
}

TEST(WorldTest, AWorldCanBeDroppedInItsMiddle) {
  for (Time limit = 0; limit < 30 * kMicrosecond; limit += 777 * kNanosecond) {
    World world(options_of_chaos(3, 1));
    for (int r = 0; r < 3; ++r) world.start(r, [&world, r] { exchange(world, r, 10); });
    EXPECT_FALSE(world.run(limit));
  }
}

// The window of 1000 bytes and puts of 400: three are issued at once, then one for each that lands.
TEST(WorldTest, ALaneWaitsWhileItsWindowIsFull) {
  WorldOptions options = options_of(2);
  options.has_links = false;
  options.pod.lane.window = 1000;
  World world(options);
  std::vector<Time> returned;
  world.start(0, [&] {
    for (std::uint64_t i = 0; i < 5; ++i) {
      world.fabric(0).commit_at(1, {400 * i, 400}, Store::near);
      returned.push_back(world.now() / kNanosecond);
    }
  });
  EXPECT_TRUE(world.run());
  EXPECT_EQ(returned, (std::vector<Time>{10, 20, 1000, 1010, 1020}));
}

// The death at a put happens after it: the bytes arrive.
TEST(WorldTest, DeathAtTheNthPut) {
  WorldOptions options = options_of(2);
  options.fates = {{.rank = 0, .call = 2, .at_put = true}};
  World world(options);
  int puts = 0;
  world.start(0, [&] {
    for (; puts < 10; ++puts) {
      const Range range{static_cast<std::uint64_t>(puts), 1};
      *world.fabric(0).claim_at(1, range) = std::byte{1};
      world.fabric(0).commit_at(1, range, Store::near);
    }
  });
  world.start(1, [&] { world.spend(10 * kMicrosecond); });
  EXPECT_TRUE(world.run());
  EXPECT_EQ(puts, 1);
  const std::byte* inbox = world.fabric(1).inbox({0, 10});
  EXPECT_EQ(std::count(inbox, inbox + 10, std::byte{1}), 2);
}

TEST(WorldTest, IsDrivenFromOutsideToo) {
  World world(options_of(2));
  world.fabric(0).store_flag(kFlag, 3);                // publishes: to rank 1
  EXPECT_EQ(world.fabric(1).load_flag(0, kFlag), 0U);  // acquires: too early
  world.spend(kLatency);
  EXPECT_EQ(world.fabric(1).load_flag(0, kFlag), 3U);  // acquires: what was published
}

TEST(WorldDeathTest, MoreLanesThanItWasMadeFor) {
  EXPECT_DEATH(
      {
        World world(options_of(1, 1));
        world.start(0, [] {});
        world.start(0, [] {});
      },
      "more lanes");
}

}  // namespace
}  // namespace ubep::sim
