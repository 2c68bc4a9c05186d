// Random schedules hold what must hold of every schedule, and planted faults are named.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/case_runner.hpp"
#include "unit/plan/schedule_check.hpp"

namespace ubep::test {
namespace {

constexpr int kSeeds = 2000;

// A place of sent[lane] with rows in it.
struct RunPlace {
  std::size_t lane;
  std::size_t run;
};

// Breaks the schedule in one of four ways; false when this one has nothing to break.
bool plant(ScheduleCase& c, Random& random) {
  std::vector<RunPlace> places;
  for (std::size_t lane = 0; lane < c.sent.size(); ++lane) {
    for (std::size_t run = 0; run < c.sent[lane].size(); ++run) places.push_back({lane, run});
  }
  const int fault = random.below(4);
  if (fault == 0) {  // one destination twice in the order
    const auto num = static_cast<int>(c.schedule.order.size());
    if (num < 2) return false;
    const int place = random.below(num - 1);
    c.schedule.order[static_cast<std::size_t>(place)] = c.schedule.order.back();
    return true;
  }
  if (places.empty()) return false;
  const RunPlace at = random.pick(places);
  std::vector<RowRun>& sent = c.sent[at.lane];
  RowRun& run = sent[at.run];
  if (fault == 1) {  // one lane left empty
    sent.clear();
  } else if (fault == 2) {  // one row twice
    const RowRun twice = {run.destination, run.first + run.count - 1, 1};
    sent.insert(sent.begin() + static_cast<std::ptrdiff_t>(at.run) + 1, twice);
  } else if (--run.count == 0) {  // one row not at all
    sent.erase(sent.begin() + static_cast<std::ptrdiff_t>(at.run));
  }
  return true;
}

TEST(SchedulePropertyTest, AllHoldAndFaultsAreFound) {
  int planted = 0;
  for (const std::uint64_t seed : seeds_of_group(0, kSeeds)) {
    ScheduleCase c = random_schedule_case(seed);
    make(c);
    ASSERT_EQ(first_violation(c), "") << "seed " << seed;
    Random random(seed, 1, 14);
    if (!plant(c, random)) continue;
    ++planted;
    ASSERT_NE(first_violation(c), "") << "seed " << seed;
  }
  EXPECT_TRUE(planted > 0 || std::getenv("UBEP_SEED") != nullptr);
}

}  // namespace
}  // namespace ubep::test
