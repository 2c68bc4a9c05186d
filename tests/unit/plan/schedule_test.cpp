// Schedules against what must hold of every one (schedule_check.hpp), and by hand.
#include "plan/schedule.hpp"

#include <gtest/gtest.h>

#include <set>

#include "unit/plan/routings.hpp"
#include "unit/plan/schedule_check.hpp"

namespace ubep {
namespace {

using test::first_violation;
using test::ScheduleCase;

constexpr std::uint64_t kSeeds = 500;

ScheduleCase random_case(std::uint64_t seed) {
  ScheduleCase c = test::random_schedule_case(seed);
  make(c);
  return c;
}

TEST(ScheduleTest, RandomSchedulesHoldAllProperties) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_EQ(first_violation(random_case(seed)), "") << "seed " << seed;
  }
}

// All shapes up to 9 destinations, 11 lanes and 4 tiers, with the destinations of each tier
// anywhere.
TEST(ScheduleTest, EverySmallShapeHasAnEvenMix) {
  for (std::uint32_t num = 0; num <= 9; ++num) {
    const std::uint32_t most_tiers = num <= 6 ? 4 : 2;
    std::uint64_t patterns = 1;
    for (std::uint32_t d = 0; d < num; ++d) patterns *= most_tiers;
    for (std::uint64_t pattern = 0; pattern < patterns; ++pattern) {
      ScheduleCase c;
      for (std::uint64_t d = 0, rest = pattern; d < num; ++d, rest /= most_tiers) {
        c.to.tiers.push_back(static_cast<std::uint16_t>(rest % most_tiers));
      }
      c.to.own_begin = num == 0 ? 0 : static_cast<std::uint32_t>(pattern % num);
      c.to.own_end = c.to.own_begin + (num == 0 ? 0 : 1);
      for (c.options.lanes = 1; c.options.lanes <= 11; ++c.options.lanes) {
        make_order(c.to, c.options, c.schedule);
        ASSERT_EQ(order_violation(c) + mix_violation(c), "")
            << num << " destinations, tiers " << pattern << ", " << c.options.lanes << " lanes";
      }
    }
  }
}

// Every split of up to 40 destinations into two tiers, and every number of lanes: ragged or not.
TEST(ScheduleTest, EveryRaggedShapeHasAnEvenMix) {
  for (std::uint32_t num = 1; num <= 40; ++num) {
    for (std::uint32_t near = 0; near <= num; ++near) {
      ScheduleCase c;
      c.to.tiers.assign(num, 1);
      std::fill_n(c.to.tiers.begin(), near, std::uint16_t{0});
      for (c.options.lanes = 1; c.options.lanes <= 48; ++c.options.lanes) {
        make_order(c.to, c.options, c.schedule);
        ASSERT_EQ(order_violation(c) + mix_violation(c), "")
            << near << " of " << num << " near, " << c.options.lanes << " lanes";
      }
    }
  }
}

TEST(ScheduleTest, LargeShapesHaveAnEvenMix) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    test::Random random(seed, 7, 7);
    ScheduleCase c;
    const int tiers = random.pick<int>({1, 2, 3, 5, 30, 600});
    const int num = random.between(1000, 5000);
    for (int d = 0; d < num; ++d) {
      c.to.tiers.push_back(static_cast<std::uint16_t>(random.below(tiers)));
    }
    c.to.own_begin = c.to.own_end = static_cast<std::uint32_t>(random.below(num));
    c.options.lanes = random.pick<int>({1, 2, 47, 48, 64, 777, 6000});
    make_order(c.to, c.options, c.schedule);
    ASSERT_EQ(order_violation(c) + mix_violation(c), "") << "seed " << seed;
  }
}

// 3 near and 7 far over 4 lanes: a matrix filled by rows, its columns the lanes. The columns of
// three, which come first in each row, are lanes 1 and 3, where equal loads have them.
TEST(ScheduleTest, TheMatrixIsReadByColumns) {
  ScheduleCase c;
  c.to = {.tiers = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1}, .own_begin = 0, .own_end = 1};
  c.options.lanes = 4;
  make_order(c.to, c.options, c.schedule);
  EXPECT_EQ(c.schedule.sorted, (std::vector<std::uint32_t>{1, 2, 0, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(c.schedule.order, (std::vector<std::uint32_t>{0, 6, 1, 4, 8, 3, 7, 2, 5, 9}));
  EXPECT_EQ(c.schedule.first_place(1), 2U);
  EXPECT_EQ(c.schedule.first_place(2), 5U);
  EXPECT_EQ(c.schedule.first_place(3), 7U);
}

TEST(ScheduleTest, WithoutRemapDestinationsAscendFromTheOwnOnes) {
  ScheduleCase c;
  c.to = {.tiers = {2, 1, 0, 1, 2}, .own_begin = 2, .own_end = 3};
  c.options = {.lanes = 2, .remap = false};
  make_order(c.to, c.options, c.schedule);
  EXPECT_EQ(c.schedule.order, (std::vector<std::uint32_t>{2, 3, 4, 0, 1}));
  c.to.own_begin = c.to.own_end = 5;  // a rank without experts behind all
  make_order(c.to, c.options, c.schedule);
  EXPECT_EQ(c.schedule.order, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
}

// Tiers of consecutive groups of these sizes, 0 = self, with `local` destinations on each rank.
Destinations in_groups(const std::vector<int>& sizes, int self, int local) {
  Destinations to;
  for (int rank = 0; rank < sizes.back(); ++rank) {
    std::uint16_t tier = 0;
    for (int size : sizes) {
      if (rank != self) tier = static_cast<std::uint16_t>(tier + 1);
      if (rank / size == self / size) break;
    }
    to.tiers.insert(to.tiers.end(), static_cast<std::size_t>(local), tier);
  }
  to.own_begin = static_cast<std::uint32_t>(self * local);
  to.own_end = to.own_begin + static_cast<std::uint32_t>(local);
  return to;
}

TEST(ScheduleTest, SourcesOfAPodNeverHaveOneDestinationAtOnePlace) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{8}, {4, 16}, {8, 64}, {2, 8, 32}, {1, 16}, {2, 4, 8, 16}}) {
    for (const int local : {1, 3}) {
      for (const int lanes : {1, 5, 16, 48}) {
        std::vector<std::set<std::uint32_t>> at_place;
        for (int self = 0; self < sizes.back(); ++self) {
          Schedule schedule;
          make_order(in_groups(sizes, self, local), {.lanes = lanes}, schedule);
          at_place.resize(schedule.order.size());
          for (std::size_t p = 0; p < schedule.order.size(); ++p) {
            ASSERT_TRUE(at_place[p].insert(schedule.order[p]).second)
                << sizes.size() << " tiers, " << lanes << " lanes, source " << self << ", place "
                << p;
          }
        }
      }
    }
  }
}

// Equal loads: a lane's rows are those of its own places, up to less than one destination at each
// end; exactly those when lanes divide destinations.
TEST(ScheduleTest, EqualLoadsFollowThePlacesOfLanes) {
  for (const std::uint32_t num : {64U, 96U, 100U, 256U}) {
    for (const std::uint32_t lanes : {1U, 7U, 16U, 32U, 48U}) {
      ScheduleCase c;
      c.to = in_groups({4, static_cast<int>(num)}, 5, 1);
      c.options.lanes = static_cast<int>(lanes);
      c.rows.assign(num, 10);
      c.lanes = c.options.lanes;
      make(c);
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        const ScheduleSlice slice = c.schedule.slice(lane, lanes);
        const std::uint32_t begin = 10 * c.schedule.first_place(lane);
        ASSERT_GE(slice.begin, begin);
        ASSERT_LT(slice.begin - begin, num % lanes == 0 ? 1U : 10U);
      }
    }
  }
}

TEST(ScheduleTest, TierRowsOfALane) {
  ScheduleCase c;
  c.to = {.tiers = {0, 1, 1, 2}, .own_begin = 0, .own_end = 1};
  c.rows = {2, 3, 0, 4};
  c.lanes = 2;
  c.options.lanes = 1;
  make(c);
  // Places: 0 | 1 2 | 3, rows 2, 3, 0, 4; the first lane has four of nine.
  std::vector<std::uint64_t> rows(3);
  count_tier_rows(c.schedule, c.schedule.slice(0, 2), c.to.tiers, rows);
  EXPECT_EQ(rows, (std::vector<std::uint64_t>{2, 2, 0}));
  count_tier_rows(c.schedule, c.schedule.slice(1, 2), c.to.tiers, rows);
  EXPECT_EQ(rows, (std::vector<std::uint64_t>{2, 3, 4}));
}

TEST(ScheduleTest, NothingToSend) {
  ScheduleCase c;
  for (const std::size_t num : {0U, 3U}) {
    c.to.tiers.assign(num, 1);
    c.rows.assign(num, 0);
    c.options.lanes = c.lanes = 5;
    make(c);
    EXPECT_EQ(first_violation(c), "");
    EXPECT_EQ(c.schedule.num_rows(), 0U);
    std::vector<ScheduleSlice> slices(5, ScheduleSlice{7, 9, 1});
    make_slices(c.schedule, slices);
    for (const ScheduleSlice& slice : slices) EXPECT_EQ(slice.num_rows(), 0U);
  }
  EXPECT_EQ(Schedule{}.slice(0, 3).num_rows(), 0U);
}

TEST(ScheduleTest, MoreLanesThanRows) {
  ScheduleCase c;
  c.to.tiers = {0, 1};
  c.rows = {0, 2};
  c.options.lanes = c.lanes = 7;
  make(c);
  EXPECT_EQ(first_violation(c), "");
}

TEST(ScheduleTest, AllSlicesAtOnceAreTheSame) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const ScheduleCase c = random_case(seed);
    std::vector<ScheduleSlice> slices(static_cast<std::size_t>(c.lanes));
    make_slices(c.schedule, slices);
    for (std::uint32_t lane = 0; lane < slices.size(); ++lane) {
      const auto want = c.schedule.slice(lane, static_cast<std::uint32_t>(c.lanes));
      ASSERT_EQ(slices[lane].begin, want.begin) << "seed " << seed << ", lane " << lane;
      ASSERT_EQ(slices[lane].end, want.end) << "seed " << seed << ", lane " << lane;
      ASSERT_EQ(slices[lane].place, want.place) << "seed " << seed << ", lane " << lane;
    }
  }
}

TEST(ScheduleTest, ACursorStopsAndGoesOn) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const ScheduleCase c = random_case(seed);
    test::Random random(seed, 1, 2);
    for (std::uint32_t lane = 0; lane < c.sent.size(); ++lane) {
      RunCursor cursor(c.schedule.slice(lane, static_cast<std::uint32_t>(c.lanes)));
      for (const RowRun& run : c.sent[lane]) {
        for (std::uint32_t done = 0; done < run.count;) {
          ASSERT_FALSE(cursor.done());
          const auto most = static_cast<std::uint32_t>(random.between(1, 6));
          const RowRun some = cursor.next(c.schedule, most);
          ASSERT_EQ(some.destination, run.destination) << "seed " << seed;
          ASSERT_EQ(some.first, run.first + done) << "seed " << seed;
          ASSERT_EQ(some.count, std::min(most, run.count - done)) << "seed " << seed;
          done += some.count;
        }
      }
      ASSERT_TRUE(cursor.done());
    }
  }
}

TEST(ScheduleTest, MemoryIsReusedAndNothingOfTheLastOneStays) {
  Schedule schedule;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const ScheduleCase c = random_case(seed);
    make_order(c.to, c.options, schedule);
    count_rows(c.rows, schedule);
    ASSERT_EQ(schedule.order, c.schedule.order) << "seed " << seed;
    ASSERT_EQ(schedule.begin, c.schedule.begin) << "seed " << seed;
  }
}

TEST(ScheduleTest, NothingIsAllocatedAgain) {
  ScheduleCase c = random_case(3);
  const auto memory = [&] {
    const Schedule& s = c.schedule;
    return std::vector{s.order.data(),     s.begin.data(),    s.sorted.data(),
                       s.tier_next.data(), s.tier_end.data(), s.turns.data()};
  };
  c.options.remap = true;
  c.schedule = {};
  make(c);
  const auto before = memory();
  for (const int lanes : {c.options.lanes, 1}) {
    c.options.lanes = lanes;
    make_order(c.to, c.options, c.schedule);
    count_rows(c.rows, c.schedule);
    EXPECT_EQ(memory(), before);
  }
}

TEST(ScheduleTest, DestinationsAreRanksOrExpertPositions) {
  const ExpertMap experts({2, 0, 2, 3, 0, 2}, 4);
  const std::vector<std::uint16_t> tiers = {2, 1, 0, 1};
  Destinations to;
  make_destinations(experts, tiers, {.self = 2, .by_expert = true}, to);
  EXPECT_EQ(to.tiers, (std::vector<std::uint16_t>{2, 2, 0, 0, 0, 1}));
  EXPECT_EQ(to.own_begin, 2U);
  EXPECT_EQ(to.own_end, 5U);
  make_destinations(experts, tiers, {.self = 1, .by_expert = true}, to);
  EXPECT_EQ(to.own_begin, to.own_end);
  make_destinations(experts, tiers, {.self = 2}, to);
  EXPECT_EQ(to.tiers, tiers);
  EXPECT_EQ(to.own_begin, 2U);
  EXPECT_EQ(to.own_end, 3U);
}

// With a send plan every choice is sent once, whatever the layout.
TEST(ScheduleTest, GroupsOfSendPlans) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const test::PlanCase p = test::random_plan_case(seed);
    test::Random random(seed, 8, 1);
    const int self = random.below(p.ranks);
    SendPlan plan;
    make_send_plan(p.sources[static_cast<std::size_t>(self)].view(), p.experts, p.shape, self,
                   plan);
    std::vector<std::uint16_t> tiers;
    for (int r = 0; r < p.ranks; ++r) {
      tiers.push_back(static_cast<std::uint16_t>(r == self ? 0 : random.between(1, 3)));
    }
    ScheduleCase c;
    make_destinations(p.experts, tiers, {.self = self, .by_expert = is_by_expert(p.shape.layout)},
                      c.to);
    c.rows = plan.group_rows;
    c.options.lanes = c.lanes = random.between(1, 16);
    make(c);
    ASSERT_EQ(first_violation(c), "") << "seed " << seed;
    ASSERT_EQ(c.schedule.num_rows(), plan.refs.size()) << "seed " << seed;
  }
}

// Planted faults are named.

class PlantedFaultTest : public testing::Test {
 protected:
  PlantedFaultTest() {
    c_.to = {.tiers = {0, 1, 1, 1, 2, 2, 2, 2}, .own_begin = 0, .own_end = 1};
    c_.rows = {2, 3, 0, 4, 1, 1, 6, 3};
    c_.options.lanes = c_.lanes = 4;
    make(c_);
  }
  // Makes the lanes' runs anew from a schedule that was changed.
  void send_again() {
    for (std::uint32_t lane = 0; lane < 4; ++lane) {
      c_.sent[lane].clear();
      for_each_run(c_.schedule, c_.schedule.slice(lane, 4),
                   [&](const RowRun& run) { c_.sent[lane].push_back(run); });
    }
  }
  ScheduleCase c_;
};

TEST_F(PlantedFaultTest, NoneIsNone) { EXPECT_EQ(first_violation(c_), ""); }

TEST_F(PlantedFaultTest, OneRowTwice) {
  const RowRun run = c_.sent[2].back();
  c_.sent[2].push_back({run.destination, run.first, 1});
  EXPECT_EQ(first_violation(c_),
            fmt::format("row {} of destination {} is sent 2 times", run.first, run.destination));
}

TEST_F(PlantedFaultTest, OneRowMissing) {
  for (auto& sent : c_.sent) {
    const auto run = std::find_if(sent.begin(), sent.end(), [](auto& r) { return r.count > 1; });
    if (run == sent.end()) continue;
    --run->count;
    break;
  }
  EXPECT_NE(first_violation(c_).find("is sent 0 times"), std::string::npos);
}

TEST_F(PlantedFaultTest, OneLaneLeftEmpty) {
  c_.sent[3].clear();
  EXPECT_NE(first_violation(c_).find("is sent 0 times"), std::string::npos);
}

TEST_F(PlantedFaultTest, OneLaneLeftEmptyAndAnotherDoesItsWork) {
  c_.sent[2].insert(c_.sent[2].end(), c_.sent[3].begin(), c_.sent[3].end());
  c_.sent[3].clear();
  EXPECT_EQ(first_violation(c_), "lanes send from 0 to 10 rows");
}

TEST_F(PlantedFaultTest, RowsThatDoNotExist) {
  c_.sent[0].front().first += 100;
  EXPECT_NE(first_violation(c_).find("lane 0: no rows 100 to"), std::string::npos);
}

TEST_F(PlantedFaultTest, TwoRunsChangePlaces) {
  auto& sent = c_.sent[0];
  ASSERT_GE(sent.size(), 2U);
  std::swap(sent[0], sent[1]);
  EXPECT_NE(first_violation(c_).find("is out of order"), std::string::npos);
}

TEST_F(PlantedFaultTest, OneDestinationTwiceInTheOrder) {
  c_.schedule.order[3] = c_.schedule.order[5];
  send_again();
  EXPECT_NE(first_violation(c_).find("is not in the order once"), std::string::npos);
}

TEST_F(PlantedFaultTest, AnUnevenMix) {
  std::sort(c_.schedule.order.begin(), c_.schedule.order.end());
  EXPECT_EQ(first_violation(c_), "tier 1: one lane has 0 destinations, one 2");
}

TEST_F(PlantedFaultTest, APrefixSumTooSmall) {
  --c_.schedule.begin[5];
  send_again();
  EXPECT_NE(first_violation(c_), "");
}

}  // namespace
}  // namespace ubep
