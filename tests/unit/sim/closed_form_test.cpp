// Layers whose times follow from the pod by hand, within 1 %. B bytes of all rows that a rank
// sends, P the rate of a port, L the latency.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "sim/layer_run.hpp"
#include "tests/unit/sim/layer_error.hpp"
#include "tests/unit/sim/pods.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

constexpr std::uint64_t kRate = 10'000'000'000;
constexpr int kHidden = 8192;
constexpr std::uint64_t kRow = 2 * kHidden;

#define EXPECT_WITHIN_1_PERCENT(value, expected)                   \
  EXPECT_NEAR(static_cast<double>(value) / double{kNanosecond},    \
              static_cast<double>(expected) / double{kNanosecond}, \
              static_cast<double>(expected) / double{kNanosecond} * 0.01)

// One expert on each rank, each token goes to `to(rank, token)`; -1 = nowhere.
LayerOptions options_of(int ranks, int tokens, const std::function<int(int, int)>& to) {
  LayerOptions o;
  o.pod = flat_pod(ranks, kRate);
  o.ranks = ranks;
  o.tokens = tokens;
  o.hidden = kHidden;
  o.topk = 1;
  o.experts = ranks;
  o.aligned = true;
  for (int r = 0; r < ranks; ++r) {
    std::vector<std::int32_t>& ids = o.topk_idx.emplace_back();
    for (int t = 0; t < tokens; ++t) ids.push_back(to(r, t));
  }
  return o;
}

// Every rank to all others in turn, beginning behind itself.
LayerOptions all_to_all(int ranks, int tokens_to_each) {
  return options_of(ranks, tokens_to_each * (ranks - 1),
                    [ranks](int r, int t) { return (r + 1 + t % (ranks - 1)) % ranks; });
}

struct Slowest {
  Time dispatch = 0;
  Time combine = 0;
};

Slowest run(const LayerOptions& options) {
  Slowest s;
  for (const RankTimes& times : run_layer(options).ranks) {
    s.dispatch = std::max(s.dispatch, times.dispatch);
    s.combine = std::max(s.combine, times.combine - times.combine_start);
  }
  return s;
}

class ClosedFormTest : public testing::TestWithParam<std::tuple<Path, int>> {
 protected:
  // On this path, with so many lanes.
  Slowest run(LayerOptions options) const {
    std::tie(options.path, options.lanes) = GetParam();
    return sim::run(options);
  }
};

TEST_P(ClosedFormTest, OneFlow) {
  const Slowest s = run(options_of(2, 400, [](int r, int) { return r == 0 ? 1 : -1; }));
  EXPECT_WITHIN_1_PERCENT(s.dispatch, time_of(400 * kRow, kRate) + 2 * kMicrosecond);
  EXPECT_WITHIN_1_PERCENT(s.combine, time_of(400 * kRow, kRate) + 2 * kMicrosecond);
}

TEST_P(ClosedFormTest, Incast) {
  const Slowest s = run(options_of(9, 50, [](int r, int) { return r == 0 ? -1 : 0; }));
  EXPECT_WITHIN_1_PERCENT(s.dispatch, time_of(8 * 50 * kRow, kRate) + 2 * kMicrosecond);
  EXPECT_WITHIN_1_PERCENT(s.combine, time_of(8 * 50 * kRow, kRate) + 2 * kMicrosecond);
}

TEST_P(ClosedFormTest, Permutation) {
  const Slowest s = run(options_of(8, 400, [](int r, int) { return (r * 5 + 3) % 8; }));
  EXPECT_WITHIN_1_PERCENT(s.dispatch, time_of(400 * kRow, kRate) + 2 * kMicrosecond);
  EXPECT_WITHIN_1_PERCENT(s.combine, time_of(400 * kRow, kRate) + 2 * kMicrosecond);
}

// A single lane would send rank by rank from 0 on, and all would meet there.
class AllToAllTest : public ClosedFormTest {};

TEST_P(AllToAllTest, Uniform) {
  const Slowest s = run(all_to_all(8, 60));
  EXPECT_WITHIN_1_PERCENT(s.dispatch, time_of(7 * 60 * kRow, kRate) + 2 * kMicrosecond);
}

// Three ranks near, four far, at half the rate.
TEST_P(AllToAllTest, OfTwoTiers) {
  LayerOptions options = all_to_all(8, 60);
  options.pod.tiers = {{"near", 4, kMicrosecond, 0, 0}, {"far", 8, kMicrosecond, 0, kRate / 2}};
  const Slowest s = run(options);
  EXPECT_WITHIN_1_PERCENT(s.dispatch, time_of((3 + 2 * 4) * 60 * kRow, kRate) + 2 * kMicrosecond);
}

std::string name_of(const testing::TestParamInfo<std::tuple<Path, int>>& params) {
  return std::string(name(std::get<0>(params.param))) + "_" +
         std::to_string(std::get<1>(params.param));
}

INSTANTIATE_TEST_SUITE_P(Paths, ClosedFormTest,
                         testing::Combine(testing::Values(Path::push, Path::bsp),
                                          testing::Values(1, 4)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Paths, AllToAllTest,
                         testing::Combine(testing::Values(Path::push, Path::bsp),
                                          testing::Values(4, 9)),
                         name_of);

// Lanes set the pace: each of them `rows` of its own, one after the other.
Time lanes_only(int rows, const LaneCosts& lane, std::uint64_t bytes) {
  return static_cast<Time>(rows) * (lane.issue + time_of(bytes, lane.put));
}

LayerOptions slow_lanes(int lanes) {
  LayerOptions o = options_of(2, 400, [](int r, int) { return r == 0 ? 1 : -1; });
  o.pod.port = o.pod.memory = 1'000'000'000'000;
  o.pod.tiers[0].latency = 0;
  o.pod.lane.issue = 50 * kNanosecond;
  o.pod.lane.put = kRate / 10;
  o.path = Path::bsp;
  o.lanes = lanes;
  return o;
}

TEST(LaneCostsTest, RowsAreCharged) {
  for (const int lanes : {1, 8}) {
    const LayerOptions plain = slow_lanes(lanes);
    const Slowest before = run(plain);
    EXPECT_WITHIN_1_PERCENT(before.dispatch, lanes_only(400 / lanes, plain.pod.lane, kRow));
    LayerOptions o = plain;
    o.pod.lane.row = 30 * kMicrosecond;
    EXPECT_WITHIN_1_PERCENT(run(o).dispatch, before.dispatch + 400 / lanes * o.pod.lane.row);
    EXPECT_EQ(run(o).combine, before.combine);
    o = plain;
    o.pod.lane.combine_row = 30 * kMicrosecond;
    EXPECT_EQ(run(o).dispatch, before.dispatch);
    EXPECT_GT(run(o).combine, before.combine + 400 / lanes * 29 * kMicrosecond);
  }
}

TEST(LaneCostsTest, RowsThatAreTakenOutAreCharged) {
  for (const Protocol protocol : {Protocol::automatic, Protocol::token_flag_512}) {
    LayerOptions o = slow_lanes(1);
    if (protocol != Protocol::automatic) o.path = Path::push;
    o.protocol = protocol;
    o.pod.lane.put = 0;
    const Slowest before = run(o);
    o.pod.lane.receive_row = 100 * kMicrosecond;
    const Slowest after = run(o);
    EXPECT_WITHIN_1_PERCENT(after.dispatch, before.dispatch + 400 * o.pod.lane.receive_row);
    EXPECT_EQ(after.combine, before.combine);
  }
  LayerOptions in_place = slow_lanes(1);
  in_place.path = Path::push;
  const Slowest before = run(in_place);
  in_place.pod.lane.receive_row = 100 * kMicrosecond;
  EXPECT_EQ(run(in_place).dispatch, before.dispatch);
}

TEST(LaneCostsTest, LaunchesAreCharged) {
  LayerOptions o = slow_lanes(2);
  const Slowest before = run(o);
  o.pod.lane.launch = 7 * kMicrosecond;
  o.pod.lane.combine_launch = 3 * kMicrosecond;
  EXPECT_EQ(run(o).dispatch, before.dispatch + 7 * kMicrosecond);
  EXPECT_EQ(run(o).combine, before.combine + 3 * kMicrosecond);
}

// One row at a time: each waits until the one before it has landed.
TEST(LaneCostsTest, StopAndWait) {
  for (const int in_flight : {1, 2}) {
    LayerOptions o = slow_lanes(1);
    o.pod.lane.put = 0;
    o.pod.lane.issue = 0;
    o.pod.tiers[0].latency = 30 * kMicrosecond;
    o.pod.lane.in_flight = in_flight;
    const Time rows = static_cast<Time>(400 / in_flight) * o.pod.tiers[0].latency;
    EXPECT_WITHIN_1_PERCENT(run(o).dispatch, rows + time_of(400 * kRow, o.pod.port));
  }
}

TEST(LaneCostsTest, BspHasItsOwn) {
  LayerOptions o = slow_lanes(2);
  const Slowest before = run(o);
  o.pod.bsp = o.pod.lane;
  o.pod.bsp->launch = 9 * kMicrosecond;
  EXPECT_EQ(run(o).dispatch, before.dispatch + 9 * kMicrosecond);
  LayerOptions push = slow_lanes(2);
  push.path = Path::push;
  const Slowest pushed = run(push);
  push.pod.bsp = o.pod.bsp;
  EXPECT_EQ(run(push).dispatch, pushed.dispatch);
}

// Rows there are as large as their records, back as large as tokens.
TEST(RecordsTest, TakeAsLongAsTheirBytes) {
  for (const Path path : {Path::push, Path::bsp}) {
    LayerOptions o = options_of(8, 400, [](int r, int) { return (r * 5 + 3) % 8; });
    o.path = path;
    o.quant = Quant::int8;
    EXPECT_EQ(dispatched_bytes(o), 8704U);  // 8192 + 32 + 12, to whole 512
    const Slowest s = run(o);
    EXPECT_WITHIN_1_PERCENT(s.dispatch, time_of(400 * 8704, kRate) + 2 * kMicrosecond);
    EXPECT_WITHIN_1_PERCENT(s.combine, time_of(400 * kRow, kRate) + 2 * kMicrosecond);
    o.quant = Quant::none;
    o.record_bytes = 40'000;
    const Slowest large = run(o);
    EXPECT_WITHIN_1_PERCENT(large.dispatch, time_of(400 * 40'000, kRate) + 2 * kMicrosecond);
    EXPECT_WITHIN_1_PERCENT(large.combine, time_of(400 * kRow, kRate) + 2 * kMicrosecond);
  }
}

TEST(RecordsTest, InTheFormOfTheirProtocol) {
  LayerOptions o = options_of(8, 400, [](int r, int) { return (r * 5 + 3) % 8; });
  o.path = Path::push;
  o.hidden = 7168;
  o.quant = Quant::int8;
  o.protocol = Protocol::token_flag_512;
  EXPECT_EQ(dispatched_bytes(o), 7212U);
  EXPECT_WITHIN_1_PERCENT(run(o).dispatch, time_of(400 * 16 * 512, kRate) + 2 * kMicrosecond);
}

TEST(RecordsTest, OnEveryPath) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    for (const Path path : {Path::read, Path::pull, Path::push, Path::bsp, Path::allgather}) {
      const bool by_token = path == Path::read || path == Path::allgather;
      if (path == Path::bsp ? layout == Layout::rank_major
                            : by_token && layout == Layout::expert_major) {
        continue;
      }
      for (const Quant quant : {Quant::int8, Quant::fp8, Quant::mxfp8, Quant::nvfp4}) {
        LayerOptions o;
        o.pod = read_pod(generic_pod());
        o.ranks = 5;
        o.lanes = 3;
        o.tokens = 9;
        o.hidden = 333;
        o.topk = 3;
        o.experts = 11;
        o.path = path;
        o.layout = layout;
        o.quant = quant;
        const Slowest s = run(o);
        EXPECT_GT(s.dispatch, 0U);
        EXPECT_GT(s.combine, 0U);
      }
    }
  }
}

TEST(RecordsTest, SizesOfRows) {
  EXPECT_EQ(record_bytes(Quant::int8, 7168), 7212U);
  EXPECT_EQ(record_bytes(Quant::int8, 2880), 2924U);
  EXPECT_EQ(record_bytes(Quant::int8, 2881), 2956U);
  EXPECT_EQ(record_bytes(Quant::fp8, 7168), 7392U);
  EXPECT_EQ(record_bytes(Quant::fp8, 2880), 2972U);
  EXPECT_EQ(record_bytes(Quant::mxfp8, 2880), 2970U);
  EXPECT_EQ(record_bytes(Quant::nvfp4, 7168), 4032U);
  EXPECT_EQ(record_bytes(Quant::nvfp4, 2880), 1620U);
}

TEST(ScenarioErrorsTest, NameTheValue) {
  const LayerOptions good = all_to_all(4, 1);
  const auto expect_error = [&](auto&& change, const std::string& text) {
    LayerOptions options = good;
    change(options);
    EXPECT_EQ(error_of(options), text);
  };
  expect_error([](auto& o) { o.pod.background = kRate; },
               "background is 10 GB/s, ports of the pod flat have 10");
  expect_error(
      [](auto& o) {
        o.pod.degraded = {{4, -1, 0.5}};
      },
      "degraded rank is 4, expected 0 to 3");
  expect_error(
      [](auto& o) {
        o.pod.degraded = {{1, 9, 0.5}};
      },
      "degraded rank is 9, expected 0 to 3");
  expect_error(
      [](auto& o) {
        o.pod.degraded = {{1, 1, 0.5}};
      },
      "degraded link is from 1 to itself");
  expect_error(
      [](auto& o) {
        o.pod.degraded = {{1, 2, 1}};
      },
      "degraded factor is 1, expected above 0 and below 1");
  expect_error(
      [](auto& o) {
        o.quant = Quant::fp8;
        o.moves_rows = true;
      },
      "rows move, so they cannot be records");
  expect_error(
      [](auto& o) {
        o.quant = Quant::fp8;
        o.record_bytes = 5;
      },
      "record_bytes is 5, quant is fp8: expected one of them");
  expect_error([](auto& o) { o.record_bytes = -1; }, "record_bytes is -1, expected 0 to 67108864");
}

}  // namespace
}  // namespace ubep::sim
