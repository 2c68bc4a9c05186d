#include "tools/ubep/lane_clock.hpp"

#include <gtest/gtest.h>

namespace ubep::tools {
namespace {

double at = 0;  // what the clock shows, in microseconds
double shown() { return at * 1e-6; }

TEST(LaneClockTest, ChargesEachLaneSinceItsLastCharge) {
  LaneClock clock(4, shown);
  at = 100;
  clock.begin(2);
  at = 101;
  clock.started(Activity::count);
  at = 104;
  clock.charge(0, Activity::send);
  at = 109;
  clock.charge(1, Activity::wait_base);
  clock.charge(0, Activity::barrier);
  at = 110;
  clock.charge(1, Activity::receive);
  const Breakdown us = clock.end();
  EXPECT_NEAR(us.of(Activity::count), 1.0 / 2, 1e-9);
  EXPECT_NEAR(us.of(Activity::send), 3.0 / 2, 1e-9);
  EXPECT_NEAR(us.of(Activity::wait_base), 9.0 / 2, 1e-9);
  EXPECT_NEAR(us.of(Activity::barrier), 6.0 / 2, 1e-9) << "and what followed until the end";
  EXPECT_NEAR(us.of(Activity::receive), 1.0 / 2, 1e-9);
  EXPECT_NEAR(us.of(Activity::idle), 0, 1e-9);
  EXPECT_NEAR(us.total(), 10, 1e-9);
  EXPECT_NEAR(us.last_row_max, 4, 1e-9);
  EXPECT_NEAR(us.last_row_mean, 2, 1e-9);
}

TEST(LaneClockTest, EndsWhatLanesWereAt) {
  LaneClock clock(3, shown);
  at = 0;
  clock.begin(3);
  at = 2;
  clock.charge(0, Activity::wait_flag);  // and sleeps
  clock.charge(1, Activity::receive);    // and has nothing to do; lane 2 never comes
  at = 5;
  const Breakdown us = clock.end();
  EXPECT_NEAR(us.of(Activity::wait_flag), 5.0 / 3, 1e-9);
  EXPECT_NEAR(us.of(Activity::receive), 2.0 / 3, 1e-9);
  EXPECT_NEAR(us.of(Activity::idle), 8.0 / 3, 1e-9);
}

TEST(LaneClockTest, APhaseKnowsNothingOfTheOneBefore) {
  LaneClock clock(2, shown);
  at = 0;
  clock.begin(2);
  at = 3;
  clock.charge(0, Activity::wait_flag);
  (void)clock.end();
  at = 50;
  clock.begin(1);
  at = 54;
  const Breakdown us = clock.end();
  EXPECT_NEAR(us.of(Activity::idle), 4, 1e-9);
  EXPECT_NEAR(us.total(), 4, 1e-9);
}

TEST(LaneClockTest, TellsWhetherTheLibraryTraces) {
  LaneClock clock(2, shown);
  clock.begin(2);
  clock.started(Activity::count);
  (void)clock.end();
  EXPECT_FALSE(clock.told());
  clock.charge(1, Activity::idle);
  EXPECT_TRUE(clock.told());
}

TEST(BreakdownTest, TypicalIsTheMiddleHalf) {
  std::vector<Breakdown> phases(4);
  const double totals[] = {1000, 10, 20, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    phases[i].us[static_cast<std::size_t>(Activity::send)] = totals[i];
    phases[i].last_row_max = totals[i] / 2;
  }
  const Breakdown mean = typical(phases);
  EXPECT_DOUBLE_EQ(mean.of(Activity::send), 15);
  EXPECT_DOUBLE_EQ(mean.last_row_max, 7.5);
  EXPECT_DOUBLE_EQ(typical({phases[1]}).total(), 10);
  EXPECT_DOUBLE_EQ(typical({}).total(), 0);
}

}  // namespace
}  // namespace ubep::tools
