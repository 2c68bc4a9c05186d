#include "engine/waiter.hpp"

#include <gtest/gtest.h>

#include <chrono>

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

class WaiterTest : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Spin, WaiterTest, testing::Bool());

// The bound is wide: this may share its CPU with a build.
TEST_P(WaiterTest, ExpiresAtTheDeadlineAndNotLongAfter) {
  Waiter waiter(GetParam(), Clock::now() + 40ms);
  const Wait wait = wait_until_expired(waiter);
  EXPECT_GE(wait.took, 39ms);
  EXPECT_LT(wait.took, 1s);
}

TEST_P(WaiterTest, AdvisesToLookForLossesAtMostOnceAMillisecond) {
  constexpr int kLooks = 5;
  const auto begin = Clock::now();
  Waiter waiter(GetParam(), begin + 20s);
  for (int looks = 0; looks < kLooks;) {
    const Waiter::Advice advice = waiter.idle();
    ASSERT_NE(advice, Waiter::Advice::expired) << looks << " looks";
    if (advice == Waiter::Advice::look_for_losses) ++looks;
  }
  EXPECT_GE(Clock::now() - begin, kLooks * 1ms);
}

// After 10 ms it sleeps: a wait must not cost a whole CPU for ever.
TEST_P(WaiterTest, SleepsInLongWaits) {
  Waiter waiter(GetParam(), Clock::now() + 100ms);
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
  Waiter waiter(GetParam(), Clock::now() - 1s);
  EXPECT_LT(wait_until_expired(waiter).calls, 5000);
}

// Work between two idle calls: the patience starts anew, the deadline does not.
TEST_P(WaiterTest, BusyStartsThePatienceAnew) {
  Waiter waiter(GetParam(), Clock::now() + 50ms);
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

TEST(MaySpinTest, OnlyWhenAllRanksHaveACpu) {
  EXPECT_TRUE(may_spin(1));
  EXPECT_FALSE(may_spin(1 << 20));
}

}  // namespace
}  // namespace ubep
