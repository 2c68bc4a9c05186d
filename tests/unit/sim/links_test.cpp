// Times of simple traffic against closed forms. B bytes of a message, b of a block, L latency; P, U
// and M rates of port, uplink and memory.
#include "sim/links.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "sim/random.hpp"
#include "tests/unit/sim/pods.hpp"

namespace ubep::sim {
namespace {

constexpr std::uint64_t kRate = 1'000'000'000;  // 1 ns for a byte
constexpr std::uint64_t kBlock = 1000;
constexpr std::uint64_t kBytes = 1'000'000;
constexpr Time kLatency = kMicrosecond;

Time ns(double value) { return static_cast<Time>(value * double{kNanosecond}); }

#define EXPECT_WITHIN_1_PERCENT(value, expected)                   \
  EXPECT_NEAR(static_cast<double>(value) / double{kNanosecond},    \
              static_cast<double>(expected) / double{kNanosecond}, \
              static_cast<double>(expected) / double{kNanosecond} * 0.01)

// Two tiers: groups of `below` ranks, with uplinks.
Pod pod_of_groups(int ranks, int below, std::uint64_t uplink) {
  Pod pod = flat_pod(ranks, kRate, kLatency);
  pod.tiers = {{"group", below, kLatency / 10, 0}, {"all", ranks, kLatency, uplink}};
  return pod;
}

// Sends messages and notes when they arrive.
class Traffic final : public Agent {
 public:
  Traffic(const Pod& pod, int lanes) : pod_(pod), links_(queue_, pod_, pod.ranks, lanes) {}

  // Returns the message's number.
  std::size_t send(int from, int lane, int to, std::uint64_t bytes, Time extra = 0) {
    arrivals.push_back(kNever);
    links_.send({from, lane, to, bytes, extra, this, arrivals.size() - 1});
    return arrivals.size() - 1;
  }
  void run_until(Time time) {
    while (queue_.next() <= time) (void)queue_.run_next();
    (void)queue_.skip_to(time);
  }
  // All arrive; returns when the last one does.
  Time finish() {
    while (queue_.run_next()) {
    }
    EXPECT_EQ(std::count(arrivals.begin(), arrivals.end(), kNever), 0);
    return *std::max_element(arrivals.begin(), arrivals.end());
  }
  void on_event(std::uint64_t token) override {
    EXPECT_EQ(arrivals[token], kNever) << "message " << token << " arrives twice";
    arrivals[token] = queue_.now();
  }
  std::uint64_t bytes_sent() const { return links_.bytes_sent(); }

  std::vector<Time> arrivals;

 private:
  EventQueue queue_;
  Pod pod_;
  Links links_;
};

// b/P + ... + b/M for the first block, then the slowest server sets the pace: (B - b) / min(rates).
TEST(LinksTest, OneFlow) {
  for (const std::uint64_t memory : {kRate / 4, kRate}) {
    Pod pod = flat_pod(2, kRate, kLatency);
    pod.memory = memory;
    Traffic traffic(pod, 1);
    traffic.send(0, 0, 1, kBytes);
    const Time expected = kLatency + time_of(kBlock, kRate) + time_of(kBytes, memory);
    EXPECT_EQ(traffic.finish(), expected);
  }
}

TEST(LinksTest, OneFlowOverUplinks) {
  for (const std::uint64_t uplink : {kRate / 4, kRate, 4 * kRate}) {
    Traffic traffic(pod_of_groups(4, 2, uplink), 1);
    traffic.send(1, 0, 3, kBytes);
    const Time first = 2 * time_of(kBlock, kRate) + 2 * time_of(kBlock, uplink);
    const Time rest = time_of(kBytes - kBlock, std::min(kRate, uplink));
    EXPECT_EQ(traffic.finish(), kLatency + first + rest);
  }
}

// L + B/P + B/M: nothing is cut below a block; and `extra` comes on top.
TEST(LinksTest, ASmallMessageAndTheExtraTime) {
  Traffic traffic(flat_pod(2, kRate, kLatency), 1);
  traffic.send(0, 0, 1, 1, ns(70));
  EXPECT_EQ(traffic.finish(), kLatency + ns(2) + ns(70));
}

// A whole block and a rest of 1 byte: L + (b + 1)/P + 1/M, the rest passes on its own.
TEST(LinksTest, TheLastBlockIsAsLongAsItsBytes) {
  Traffic traffic(flat_pod(2, kRate, kLatency), 1);
  traffic.send(0, 0, 1, kBlock + 1);
  // The memory is still at the first block when the rest arrives.
  EXPECT_EQ(traffic.finish(), kLatency + ns(kBlock) + ns(kBlock) + ns(1));
}

TEST(LinksTest, RanksOfOneGroupDoNotUseTheUplink) {
  Traffic traffic(pod_of_groups(4, 2, kRate / 1000), 1);
  traffic.send(0, 0, 1, kBytes);
  EXPECT_EQ(traffic.finish(), kLatency / 10 + time_of(kBlock, kRate) + time_of(kBytes, kRate));
}

// The receiver's memory is always busy: L + b/P + N B / M.
TEST(LinksTest, Incast) {
  for (const int senders : {2, 7, 31}) {
    Traffic traffic(flat_pod(senders + 1, kRate, kLatency), 1);
    for (int s = 1; s <= senders; ++s) traffic.send(s, 0, 0, kBytes);
    const Time last = traffic.finish();
    const auto all = static_cast<std::uint64_t>(senders) * kBytes;
    EXPECT_WITHIN_1_PERCENT(last, kLatency + time_of(kBlock, kRate) + time_of(all, kRate));
    // Senders take turns, so all end within a block of each.
    const Time first = *std::min_element(traffic.arrivals.begin(), traffic.arrivals.end());
    EXPECT_LE(last - first, static_cast<Time>(senders) * time_of(kBlock, kRate));
  }
}

// A memory that is faster than the port gets no more than the port lets in.
TEST(LinksTest, IncastIsLimitedByThePortToo) {
  Pod pod = flat_pod(5, kRate, kLatency);
  pod.memory = 100 * kRate;
  Traffic traffic(pod, 1);
  for (int s = 1; s < 5; ++s) traffic.send(s, 0, 0, kBytes);
  EXPECT_WITHIN_1_PERCENT(traffic.finish(), kLatency + time_of(4 * kBytes, kRate));
}

// Nobody is in another's way: each ends as one flow alone.
TEST(LinksTest, Permutation) {
  constexpr int kRanks = 16;
  Traffic traffic(flat_pod(kRanks, kRate, kLatency), 1);
  for (int r = 0; r < kRanks; ++r) traffic.send(r, 0, (r * 5 + 3) % kRanks, kBytes);
  (void)traffic.finish();
  for (const Time at : traffic.arrivals) {
    EXPECT_EQ(at, kLatency + time_of(kBlock, kRate) + time_of(kBytes, kRate));
  }
}

// Every port is always busy: L + (N - 1) B / P + b/M.
TEST(LinksTest, UniformAllToAll) {
  constexpr int kRanks = 8;
  const Time expected = kLatency + time_of((kRanks - 1) * kBytes, kRate) + time_of(kBlock, kRate);
  Traffic one_by_one(flat_pod(kRanks, kRate, kLatency), 1);
  Traffic at_once(flat_pod(kRanks, kRate, kLatency), kRanks);
  for (int r = 0; r < kRanks; ++r) {
    for (int i = 1; i < kRanks; ++i) {
      one_by_one.send(r, 0, (r + i) % kRanks, kBytes);
      at_once.send(r, i, (r + i) % kRanks, kBytes);
    }
  }
  EXPECT_WITHIN_1_PERCENT(one_by_one.finish(), expected);
  EXPECT_WITHIN_1_PERCENT(at_once.finish(), expected);
}

// Block by block in turns: equal ones end within a block at L + 2 B / P + b/M; of B and 3 B the
// small one ends at 2 B / P, the other at 4 B / P.
TEST(LinksTest, TwoLanesShareAPort) {
  const Time fixed = kLatency + time_of(kBlock, kRate);
  Traffic equal(flat_pod(3, kRate, kLatency), 2);
  equal.send(0, 0, 1, kBytes);
  equal.send(0, 1, 2, kBytes);
  EXPECT_WITHIN_1_PERCENT(equal.finish(), fixed + time_of(2 * kBytes, kRate));
  EXPECT_EQ(equal.arrivals[1] - equal.arrivals[0], time_of(kBlock, kRate));

  Traffic unequal(flat_pod(3, kRate, kLatency), 2);
  unequal.send(0, 0, 1, 3 * kBytes);
  unequal.send(0, 1, 2, kBytes);
  EXPECT_WITHIN_1_PERCENT(unequal.finish(), fixed + time_of(4 * kBytes, kRate));
  EXPECT_WITHIN_1_PERCENT(unequal.arrivals[1], fixed + time_of(2 * kBytes, kRate));
}

// A flow of one lane keeps its order: the second message waits for all of the first.
TEST(LinksTest, MessagesOfOneLaneKeepTheirOrder) {
  Traffic traffic(flat_pod(3, kRate, kLatency), 1);
  traffic.send(0, 0, 1, kBytes);
  traffic.send(0, 0, 2, kBlock);
  EXPECT_EQ(traffic.finish(), kLatency + time_of(kBytes + 2 * kBlock, kRate));
}

// Four ranks over one uplink as fast as a port: L + 4 B / U, and some blocks. In the other
// direction at the same time the same; within the group nothing changes.
TEST(LinksTest, AnUplinkIsTheBottleneck) {
  Traffic traffic(pod_of_groups(12, 4, kRate), 2);
  for (int r = 0; r < 4; ++r) {
    traffic.send(r, 0, 4 + r, kBytes);
    traffic.send(4 + r, 0, r, kBytes);
  }
  const std::size_t near = traffic.send(8, 0, 9, kBytes);
  (void)traffic.finish();
  for (std::size_t i = 0; i < near; ++i) {
    EXPECT_WITHIN_1_PERCENT(traffic.arrivals[i], kLatency + time_of(4 * kBytes, kRate));
  }
  EXPECT_EQ(traffic.arrivals[near],
            kLatency / 10 + time_of(kBlock, kRate) + time_of(kBytes, kRate));
}

// From two groups into a third: its own uplink is shared, L + 4 B / U.
TEST(LinksTest, AnUplinkIsTheBottleneckOfAGroupThatReceives) {
  Traffic traffic(pod_of_groups(12, 4, kRate), 1);
  traffic.send(0, 0, 8, kBytes);
  traffic.send(1, 0, 9, kBytes);
  traffic.send(4, 0, 10, kBytes);
  traffic.send(5, 0, 11, kBytes);
  EXPECT_WITHIN_1_PERCENT(traffic.finish(), kLatency + time_of(4 * kBytes, kRate));
}

// In the midst of a large message: the block under way, at most one of the large one, its own; and
// at most as many before the memory: L + 5 b / P.
TEST(LinksTest, ASmallMessageIsNotStarvedByAnotherLane) {
  Traffic traffic(flat_pod(3, kRate, kLatency), 2);
  traffic.send(0, 0, 1, kBytes);
  for (const int to : {1, 2}) {
    const Time start = time_of(kBytes, kRate) / 4 * static_cast<Time>(to);
    traffic.run_until(start);
    const std::size_t small = traffic.send(0, 1, to, kBlock);
    traffic.run_until(start + kLatency + time_of(5 * kBlock, kRate));
    EXPECT_NE(traffic.arrivals[small], kNever);
  }
  (void)traffic.finish();
}

// At a memory where many senders wait a small message of another sender waits for one turn:
// L + (N + 3) b / M.
TEST(LinksTest, ASmallMessageIsNotStarvedByOtherSenders) {
  constexpr int kSenders = 8;
  Traffic traffic(flat_pod(kSenders + 2, kRate, kLatency), 1);
  for (int s = 1; s <= kSenders; ++s) traffic.send(s, 0, 0, kBytes);
  traffic.run_until(time_of(kBytes, kRate));
  const std::size_t small = traffic.send(kSenders + 1, 0, 0, kBlock);
  traffic.run_until(time_of(kBytes, kRate) + kLatency + time_of((kSenders + 3) * kBlock, kRate));
  EXPECT_NE(traffic.arrivals[small], kNever);
  (void)traffic.finish();
}

// Two tiers, of which the far one gets half of a port.
Pod pod_of_rates(int ranks, int below) {
  Pod pod = pod_of_groups(ranks, below, 0);
  pod.tiers[1].rate = kRate / 2;
  return pod;
}

TEST(LinksTest, OneFlowAtTheRateOfItsTier) {
  Traffic traffic(pod_of_rates(4, 2), 1);
  traffic.send(0, 0, 1, kBytes);
  traffic.send(2, 0, 0, kBytes);
  (void)traffic.finish();
  EXPECT_EQ(traffic.arrivals[0], kLatency / 10 + time_of(kBlock, kRate) + time_of(kBytes, kRate));
  EXPECT_EQ(traffic.arrivals[1], kLatency + time_of(kBlock + kBytes, kRate / 2));
}

// A memory that is slower than the tier sets the pace.
TEST(LinksTest, TheSlowerOfTierAndMemory) {
  Pod pod = pod_of_rates(4, 2);
  pod.memory = kRate / 4;
  Traffic traffic(pod, 1);
  traffic.send(2, 0, 0, kBytes);
  EXPECT_EQ(traffic.finish(), kLatency + time_of(kBlock, kRate / 2) + time_of(kBytes, kRate / 4));
}

// Near bytes at the port's rate, far ones at half of it: B (n / P + 2 f / P).
TEST(LinksTest, IncastFromTwoTiers) {
  Traffic traffic(pod_of_rates(16, 8), 1);
  for (int s = 1; s < 16; ++s) traffic.send(s, 0, 0, kBytes);
  EXPECT_WITHIN_1_PERCENT(traffic.finish(), kLatency + time_of((7 + 2 * 8) * kBytes, kRate));
}

TEST(LinksTest, PermutationAcrossATier) {
  Traffic traffic(pod_of_rates(8, 4), 1);
  for (int r = 0; r < 8; ++r) traffic.send(r, 0, (r + 4) % 8, kBytes);
  (void)traffic.finish();
  for (const Time at : traffic.arrivals) {
    EXPECT_EQ(at, kLatency + time_of(kBlock + kBytes, kRate / 2));
  }
}

TEST(LinksTest, UniformAllToAllOfTwoTiers) {
  constexpr int kRanks = 8;
  const Time expected = kLatency + time_of((3 + 2 * 4) * kBytes, kRate);
  Traffic at_once(pod_of_rates(kRanks, 4), kRanks);
  for (int r = 0; r < kRanks; ++r) {
    for (int i = 1; i < kRanks; ++i) at_once.send(r, i, (r + i) % kRanks, kBytes);
  }
  EXPECT_WITHIN_1_PERCENT(at_once.finish(), expected);
}

// What one rank sends another takes longer; what else they send and take in does not.
TEST(LinksTest, ADegradedLink) {
  Pod pod = flat_pod(4, kRate, kLatency);
  pod.degraded = {{.rank = 0, .to = 1, .factor = 0.25}};
  Traffic traffic(pod, 1);
  traffic.send(0, 0, 1, kBytes);
  const std::size_t back = traffic.send(1, 0, 0, kBytes);
  traffic.finish();
  EXPECT_EQ(traffic.arrivals[0],
            kLatency + 2 * time_of(kBlock, kRate) + time_of(kBytes, kRate / 4));
  EXPECT_EQ(traffic.arrivals[back], kLatency + time_of(kBlock + kBytes, kRate));

  Traffic others(pod, 2);
  others.send(0, 0, 1, kBytes);
  const std::size_t other = others.send(0, 1, 2, kBytes);
  EXPECT_WITHIN_1_PERCENT(others.finish(), kLatency + time_of(kBytes, kRate / 4));
  EXPECT_WITHIN_1_PERCENT(others.arrivals[other], kLatency + time_of(2 * kBytes, kRate));
}

TEST(LinksTest, ADegradedRank) {
  Pod pod = flat_pod(4, kRate, kLatency);
  pod.degraded = {{.rank = 0, .to = -1, .factor = 0.5}};
  Traffic traffic(pod, 1);
  traffic.send(0, 0, 1, kBytes);
  traffic.send(2, 0, 0, kBytes);
  const std::size_t other = traffic.send(3, 0, 2, kBytes);
  traffic.finish();
  EXPECT_WITHIN_1_PERCENT(traffic.arrivals[0], kLatency + time_of(kBytes, kRate / 2));
  EXPECT_WITHIN_1_PERCENT(traffic.arrivals[1], kLatency + time_of(kBytes, kRate / 2));
  EXPECT_EQ(traffic.arrivals[other], kLatency + time_of(kBlock + kBytes, kRate));
}

// A fifth of each port is taken: of whatever tier, four fifths are left.
TEST(LinksTest, OtherTrafficTakesItsShare) {
  Pod pod = pod_of_rates(4, 2);
  pod.background = kRate / 5;
  Traffic traffic(pod, 1);
  traffic.send(0, 0, 1, kBytes);
  traffic.send(2, 0, 0, kBytes);
  traffic.finish();
  EXPECT_WITHIN_1_PERCENT(traffic.arrivals[0], kLatency / 10 + time_of(kBytes * 5, kRate * 4));
  EXPECT_WITHIN_1_PERCENT(traffic.arrivals[1], kLatency + time_of(kBytes * 5, kRate * 2));
}

// Whatever is sent arrives, once (Traffic looks), and no server is faster than its rate: the end
// is not before what any port, memory or uplink must carry, nor long after the sum of all.
TEST(LinksTest, BytesAreConserved) {
  Random random(5);
  for (int round = 0; round < 30; ++round) {
    constexpr int kRanks = 6;
    Traffic traffic(pod_of_groups(kRanks, 2, kRate / 2), 2);
    std::map<int, std::uint64_t> out, in, up;
    std::uint64_t all = 0;
    for (int i = 0; i < 200; ++i) {
      const auto from = static_cast<int>(random.up_to(kRanks - 1));
      const auto to = static_cast<int>(random.up_to(kRanks - 1));
      const auto lane = static_cast<int>(random.up_to(1));
      const std::uint64_t bytes = 1 + random.up_to(random.one_in(4) ? 20'000 : 2'000);
      traffic.send(from, lane, to, bytes);
      out[from] += bytes;
      in[to] += bytes;
      if (from / 2 != to / 2) up[from / 2] += 2 * bytes;
      all += bytes;
    }
    const Time end = traffic.finish();
    EXPECT_EQ(traffic.bytes_sent(), all);
    for (const auto& bytes : {out, in, up}) {
      for (const auto& [where, amount] : bytes) EXPECT_GE(end, time_of(amount, kRate)) << where;
    }
    EXPECT_LE(end, kLatency + time_of(all, kRate));
  }
}

}  // namespace
}  // namespace ubep::sim
