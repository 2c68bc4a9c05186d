#include "sim/layer_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "tests/unit/sim/layer_error.hpp"
#include "tests/unit/sim/pods.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {

bool operator==(const RankTimes& a, const RankTimes& b) {
  return a.dispatch == b.dispatch && a.first_read == b.first_read && a.combine == b.combine;
}

namespace {

LayerOptions options_of(Path path, Layout layout, int ranks, int tokens) {
  LayerOptions options;
  options.pod = read_pod(generic_pod());
  options.ranks = ranks;
  options.tokens = tokens;
  options.hidden = 96;
  options.topk = 3;
  options.experts = 11;
  options.path = path;
  options.layout = layout;
  return options;
}

void expect_same(const LayerResult& a, const LayerResult& b) {
  EXPECT_TRUE(a.ranks == b.ranks);
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.bytes_sent, b.bytes_sent);
}

class LayerRunTest : public testing::TestWithParam<std::tuple<Path, Layout>> {
 protected:
  Path path() const { return std::get<0>(GetParam()); }
  Layout layout() const { return std::get<1>(GetParam()); }
};

TEST_P(LayerRunTest, PayloadChangesNoTimeAndComesBackRight) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const int tokens : {0, 1, 2, 7, 20}) {
      for (const int lanes : {1, 3}) {
        SCOPED_TRACE(testing::Message()
                     << ranks << " ranks, " << tokens << " tokens, " << lanes << " lanes");
        LayerOptions options = options_of(path(), layout(), ranks, tokens);
        options.lanes = lanes;
        options.pod.jitter = lanes == 3 ? 200 * kNanosecond : 0;
        options.seed = static_cast<std::uint64_t>(ranks * 100 + tokens);
        const LayerResult timed = run_layer(options);
        options.moves_rows = true;
        const LayerResult moved = run_layer(options);
        expect_same(timed, moved);
        EXPECT_EQ(moved.wrong_rows, 0);
        ASSERT_EQ(timed.ranks.size(), static_cast<std::size_t>(ranks));
        for (const RankTimes& times : timed.ranks) {
          EXPECT_GT(times.dispatch, 0U);
          EXPECT_GE(times.first_read, times.dispatch);
          EXPECT_GT(times.combine, times.first_read);
        }
      }
    }
  }
}

TEST_P(LayerRunTest, TheSameSeedGivesTheSameRun) {
  LayerOptions options = options_of(path(), layout(), 9, 20);
  options.lanes = 3;
  for (const Time jitter : {Time{0}, 300 * kNanosecond}) {
    options.pod.jitter = jitter;
    options.seed = 1;
    const LayerResult first = run_layer(options);
    expect_same(first, run_layer(options));
    options.seed = 2;
    EXPECT_FALSE(first.ranks == run_layer(options).ranks);
  }
}

Time all_of(const LaneTimes& lane) {
  Time sum = 0;
  for (const Time time : lane.spent) sum += time;
  return sum;
}

// What lanes are told to have spent adds up to what passed, and roles do what they are named after.
TEST_P(LayerRunTest, LanesAccountForAllTheirTime) {
  for (const int lanes : {1, 2, 5}) {
    LayerOptions options = options_of(path(), layout(), 6, 40);
    options.lanes = lanes;
    options.hidden = 2048;
    for (const RankTimes& rank : run_layer(options).ranks) {
      ASSERT_EQ(rank.dispatch_lanes.size(), static_cast<std::size_t>(lanes));
      EXPECT_EQ(rank.roles.count + rank.roles.send + rank.roles.receive, lanes);
      Time counted = 0;
      for (const LaneTimes& lane : rank.dispatch_lanes) {
        EXPECT_EQ(all_of(lane), rank.dispatch);
        EXPECT_LE(lane.last_row, rank.dispatch);
        counted += lane.of(Activity::count);
        if (path() != Path::bsp) {
          EXPECT_EQ(lane.of(Activity::barrier), 0U);
        }
      }
      EXPECT_GT(counted, 0U);
      for (const LaneTimes& lane : rank.combine_lanes) {
        EXPECT_EQ(all_of(lane), rank.combine - rank.first_read);
      }
    }
  }
}

// A larger pod of the same shape takes as long; slower links take longer.
TEST_P(LayerRunTest, TimesFollowThePod) {
  const auto all = [](const LayerOptions& options) {
    Time last = 0;
    for (const RankTimes& times : run_layer(options).ranks) last = std::max(last, times.combine);
    return last;
  };
  LayerOptions options = options_of(path(), layout(), 4, 30);
  options.hidden = 7168;
  const Time time = all(options);
  LayerOptions slow = options;
  slow.pod.port = slow.pod.memory = options.pod.port / 50;
  EXPECT_GT(all(slow), 2 * time);
  LayerOptions far = options;
  far.pod.tiers[0].latency += 100 * kMicrosecond;
  EXPECT_GT(all(far), time + 200 * kMicrosecond);
}

// Late ranks make all of them wait, the same ones each time; a seed makes others late.
TEST_P(LayerRunTest, RanksMayArriveLate) {
  LayerOptions options = options_of(path(), layout(), 6, 10);
  const auto all = [&] {
    std::vector<Time> ends;
    for (const RankTimes& times : run_layer(options).ranks) ends.push_back(times.combine);
    return ends;
  };
  const std::vector<Time> together = all();
  options.arrival = 50 * kMicrosecond;
  const std::vector<Time> late = all();
  EXPECT_EQ(late, all());
  const Time last = *std::max_element(late.begin(), late.end());
  EXPECT_GT(last, *std::max_element(together.begin(), together.end()) + 20 * kMicrosecond);
  EXPECT_LT(last, *std::max_element(together.begin(), together.end()) + 500 * kMicrosecond);
  options.seed = 2;
  EXPECT_NE(late, all());
}

TEST_P(LayerRunTest, ExpertsTakeTimeForEachRow) {
  LayerOptions options = options_of(path(), layout(), 6, 10);
  for (const RankTimes& times : run_layer(options).ranks) {
    EXPECT_EQ(times.combine_start, times.first_read);
  }
  options.expert_row = 3 * kMicrosecond;
  for (const RankTimes& times : run_layer(options).ranks) {
    EXPECT_GT(times.rows, 0U);
    EXPECT_EQ(times.combine_start - times.first_read, times.rows * 3 * kMicrosecond);
  }
}

TEST_P(LayerRunTest, SlicesChangeNoTime) {
  LayerOptions options = options_of(path(), layout(), 6, 10);
  options.lanes = 2;
  const LayerResult plain = run_layer(options);
  std::vector<LaneSlice> slices;
  options.slices = &slices;
  expect_same(plain, run_layer(options));
  EXPECT_FALSE(slices.empty());
}

// Where rows do not move, the fabric tells what has arrived: at the same times.
TEST(LayerRunProtocolTest, PayloadChangesNoTimeAndComesBackRight) {
  for (int p = 1; p <= static_cast<int>(Protocol::fence); ++p) {
    for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
      for (const int tokens : {0, 1, 7}) {
        LayerOptions options = options_of(Path::push, layout, 5, tokens);
        options.protocol = static_cast<Protocol>(p);
        options.lanes = 2;
        options.pod.jitter = 200 * kNanosecond;
        if (options.protocol == Protocol::checksum) options.checksum_rows = tokens % 2 * 3;
        SCOPED_TRACE(testing::Message() << name(options.protocol) << ", " << name(layout) << ", "
                                        << tokens << " tokens");
        const LayerResult timed = run_layer(options);
        options.moves_rows = true;
        const LayerResult moved = run_layer(options);
        expect_same(timed, moved);
        EXPECT_EQ(moved.wrong_rows, 0);
      }
    }
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Path, Layout>>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

using Both = std::tuple<Path, Layout>;
INSTANTIATE_TEST_SUITE_P(
    Paths, LayerRunTest,
    testing::Values(Both{Path::read, Layout::rank_major}, Both{Path::pull, Layout::rank_major},
                    Both{Path::pull, Layout::expert_major}, Both{Path::push, Layout::rank_major},
                    Both{Path::push, Layout::expert_major}, Both{Path::bsp, Layout::expert_major},
                    Both{Path::allgather, Layout::rank_major}),
    name_of);

TEST(LayerRunErrorsTest, NameTheValue) {
  const LayerOptions good = options_of(Path::push, Layout::expert_major, 2, 1);
  EXPECT_EQ(error_of(good), "");
  const auto expect_error = [&](auto&& change, const std::string& text) {
    LayerOptions options = good;
    change(options);
    EXPECT_EQ(error_of(options), text);
  };
  expect_error([](auto& o) { o.ranks = 257; }, "ranks is 257, the pod generic has 256");
  expect_error([](auto& o) { o.ranks = 0; }, "ranks is 0, the pod generic has 256");
  expect_error([](auto& o) { o.topk = 12; }, "topk is 12, expected 1 to 11");
  expect_error([](auto& o) { o.topk = 0; }, "topk is 0, expected 1 to 11");
  expect_error(
      [](auto& o) {
        o.experts = 100;
        o.topk = 65;
      },
      "topk is 65, expected 1 to 64");
  expect_error([](auto& o) { o.experts = 0; }, "experts is 0, expected 1 to 65535");
  expect_error([](auto& o) { o.lanes = 0; }, "lanes is 0, expected 1 to 64");
  expect_error([](auto& o) { o.lanes = 65; }, "lanes is 65, expected 1 to 64");
  expect_error([](auto& o) { o.tokens = -1; }, "tokens is -1, expected 0 to 16777216");
  expect_error([](auto& o) { o.hidden = 0; }, "hidden is 0, expected 1 to 16777216");
  expect_error([](auto& o) { o.path = Path::automatic; },
               "path is automatic, expected one that is named");
  expect_error([](auto& o) { o.path = Path::read; },
               "layout is expert_major, path read needs rank_major");
  expect_error(
      [](auto& o) {
        o.path = Path::bsp;
        o.layout = Layout::rank_major;
      },
      "layout is rank_major, path bsp needs expert_major");
  expect_error([](auto& o) { o.layout = Layout::expert_padded; },
               "layout is expert_padded, expected another one");
  expect_error(
      [](auto& o) {
        o.ranks = 256;
        o.tokens = 1 << 24;
      },
      "tokens x topk x ranks is 12884902143 rows on rank 0, expected at most 2147483647");
}

TEST(LayerRunSizesTest, AsManyLanesAsThereMayBe) {
  LayerOptions options = options_of(Path::push, Layout::expert_major, 2, 9);
  options.lanes = 64;
  options.moves_rows = true;
  EXPECT_EQ(run_layer(options).wrong_rows, 0);
}

// Rows cross the links once for each rank that owns one of the token's experts.
TEST(LayerRunSizesTest, TwoRanksSendAtLeastTheirRows) {
  LayerOptions options = options_of(Path::push, Layout::expert_major, 2, 50);
  options.experts = 2;
  options.topk = 2;
  const std::uint64_t rows = 2 * 50;
  const std::uint64_t bytes = 2 * rows * 96 * 2;  // there and back
  EXPECT_GE(run_layer(options).bytes_sent, bytes);
  EXPECT_LE(run_layer(options).bytes_sent, 2 * bytes);
}

}  // namespace
}  // namespace ubep::sim
