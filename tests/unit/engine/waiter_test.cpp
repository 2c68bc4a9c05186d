#include "engine/waiter.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace ubep {
namespace {

using namespace std::chrono_literals;
using Clock = Waiter::Clock;

struct Wait {
  Clock::duration took;
  int calls = 0;
  int looks = 0;
};

Wait wait_until_expired(Waiter& waiter) {
  Wait wait{};
  const auto begin = Clock::now();
  for (;;) {
    ++wait.calls;
    const Waiter::Advice advice = waiter.idle();
    if (advice == Waiter::Advice::expired || wait.calls > 100'000'000) break;
  }
  wait.took = Clock::now() - begin;
  return wait;
}

class WaiterTest : public testing::TestWithParam<bool> {
 protected:
  Crowd crowd_;
};

INSTANTIATE_TEST_SUITE_P(Spin, WaiterTest, testing::Bool());

// The bound is wide: this may share its CPU with a build.
TEST_P(WaiterTest, ExpiresAtTheDeadlineAndNotLongAfter) {
  Waiter waiter(GetParam(), Clock::now() + 40ms, crowd_);
  const Wait wait = wait_until_expired(waiter);
  EXPECT_GE(wait.took, 39ms);
  EXPECT_LT(wait.took, 1s);
}

TEST_P(WaiterTest, AdvisesToLookForLossesAtMostOnceAMillisecond) {
  constexpr int kLooks = 5;
  const auto begin = Clock::now();
  Waiter waiter(GetParam(), begin + 20s, crowd_);
  for (int looks = 0; looks < kLooks;) {
    const Waiter::Advice advice = waiter.idle();
    ASSERT_NE(advice, Waiter::Advice::expired) << looks << " looks";
    if (advice == Waiter::Advice::look_for_losses) ++looks;
  }
  EXPECT_GE(Clock::now() - begin, kLooks * 1ms);
}

// After 10 ms it sleeps: a wait must not cost a whole CPU for ever.
TEST_P(WaiterTest, SleepsInLongWaits) {
  Waiter waiter(GetParam(), Clock::now() + 100ms, crowd_);
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  (void)wait_until_expired(waiter);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const auto cpu = std::chrono::seconds(after.tv_sec - before.tv_sec) +
                   std::chrono::nanoseconds(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(cpu, 60ms);
}

TEST_P(WaiterTest, APassedDeadlineIsNoticedSoon) {
  Waiter waiter(GetParam(), Clock::now() - 1s, crowd_);
  EXPECT_LT(wait_until_expired(waiter).calls, 5000);
}

// Work between two idle calls: the patience starts anew, the deadline does not.
TEST_P(WaiterTest, BusyStartsThePatienceAnew) {
  Waiter waiter(GetParam(), Clock::now() + 50ms, crowd_);
  int looks = 0;
  const auto begin = Clock::now();
  while (Clock::now() - begin < 20ms) {
    for (int call = 0; call < 10; ++call) {
      if (waiter.idle() == Waiter::Advice::look_for_losses) ++looks;
    }
    waiter.busy();
  }
  EXPECT_EQ(looks, 0);
  EXPECT_LT(wait_until_expired(waiter).took, 1s);
}

// On one CPU with a thread that computes: after a yield that went to it, waits nap, and a new wait
// goes on with that.
TEST_P(WaiterTest, NapsBesideWhoeverKeepsTheCpu) {
  std::atomic<bool> stop{false};
  std::thread([&] {  // which may be pinned as this test's own thread must not be
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    std::thread busy([&] {  // inherits the CPU
      while (!stop.load()) {
      }
    });
    const auto begin = Clock::now();
    Waiter waiter(GetParam(), begin + 30s, crowd_);
    while (crowd_.naps == 0 && Clock::now() - begin < 20s) (void)waiter.idle();
    EXPECT_GT(crowd_.naps, 0);
    const int naps = crowd_.naps;
    Waiter next(GetParam(), begin + 30s, crowd_);
    for (int call = 1; call <= (GetParam() ? Waiter::kSpins : 1); ++call) (void)next.idle();
    EXPECT_EQ(crowd_.naps, naps - 1);
    stop.store(true);
    busy.join();
  })
      .join();
}

// Ranks that work for long before they wait, too, are waited for awake.
TEST_P(WaiterTest, DoesNotNapBesideRanksThatDoWhatItDoes) {
  std::atomic<bool> stop{false};
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    std::thread busy([&] {
      while (!stop.load()) {
      }
    });
    crowd_.ranks_per_cpu = 2;
    crowd_.back = Clock::now() - 10s;  // it worked for that long
    const auto begin = Clock::now();
    Waiter waiter(GetParam(), begin + 30s, crowd_);
    constexpr int kYields = 5;
    const int spins = GetParam() ? Waiter::kSpins : 0;
    for (int call = 0; call < spins + kYields; ++call) (void)waiter.idle();
    EXPECT_EQ(crowd_.naps, 0);
    EXPECT_GT(crowd_.worked, 1s);
    stop.store(true);
    busy.join();
  }).join();
}

TEST(RanksPerCpuTest, CountsTheCpusOfThisThread) {
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(ranks_per_cpu(1), 1);
    EXPECT_EQ(ranks_per_cpu(3), 3);
  }).join();
  EXPECT_EQ(ranks_per_cpu(1), 1);
  EXPECT_GT(ranks_per_cpu(1 << 20), 1);
}

}  // namespace
}  // namespace ubep
