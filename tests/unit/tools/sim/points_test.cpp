#include "tools/ubep/sim/points.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/sim/pods.hpp"
#include "tests/unit/tools/test_support.hpp"

namespace ubep::tools {
namespace {

// A pod whose barriers take so long.
sim::PodVariant variant_of(const std::string& name, double weight, sim::Time barrier) {
  sim::PodVariant variant{.name = name, .weight = weight, .pod = sim::read_pod(sim::generic_pod())};
  variant.pod.lane.barrier = barrier;
  return variant;
}

SimPlan small_plan() {
  SimPlan plan;
  plan.base = {.ranks = 9, .hidden = 1024, .topk = 2, .experts = 18};
  plan.lanes = 3;
  plan.variants = {variant_of("cheap", 0.5, 0), variant_of("dear", 0.3, 30 * sim::kMicrosecond),
                   variant_of("dearest", 0.2, 90 * sim::kMicrosecond)};
  plan.paths = parse_contenders("bsp,push,push:fence", {});
  plan.tokens = {4, 16};
  plan.seeds = {1, 2};
  plan.routing = "uniform";
  return plan;
}

void expect_same(const OperationFigures& a, const OperationFigures& b) {
  EXPECT_EQ(a.mean, b.mean);
  EXPECT_EQ(a.p99, b.p99);
  EXPECT_EQ(a.max_lane, b.max_lane);
  EXPECT_EQ(a.ensemble.low, b.ensemble.low);
  EXPECT_EQ(a.ensemble.high, b.ensemble.high);
}

TEST(SimPointsTest, AreTheSameWithSeveralJobs) {
  SimPlan plan = small_plan();
  const SimGrid grid(plan);
  const std::vector<SimPoint> one = points_of(plan, grid);
  plan.jobs = 3;
  const SimGrid again(plan);
  const std::vector<SimPoint> three = points_of(plan, again);
  EXPECT_EQ(grid.events(), again.events());
  ASSERT_EQ(one.size(), 2U);
  for (std::size_t t = 0; t < one.size(); ++t) {
    ASSERT_EQ(one[t].paths.size(), 3U);
    for (std::size_t p = 0; p < one[t].paths.size(); ++p) {
      EXPECT_EQ(one[t].paths[p].variant, three[t].paths[p].variant);
      expect_same(one[t].paths[p].dispatch, three[t].paths[p].dispatch);
      expect_same(one[t].paths[p].combine, three[t].paths[p].combine);
    }
  }
}

TEST(SimPointsTest, IntervalsAreThoseOfTheVariants) {
  const SimPlan plan = small_plan();
  const SimGrid grid(plan);
  const SimPoint point = points_of(plan, grid).front();
  EXPECT_EQ(point.tokens, 4);
  const PathFigures& bsp = point.paths[0];
  ASSERT_EQ(bsp.variants.size(), 3U);
  EXPECT_GT(bsp.variants[1].dispatch, bsp.variants[0].dispatch + 30);
  EXPECT_GT(bsp.variants[2].dispatch, bsp.variants[1].dispatch + 60);
  EXPECT_EQ(bsp.dispatch.ensemble.low, bsp.variants[0].dispatch);
  EXPECT_EQ(bsp.dispatch.ensemble.mid, bsp.variants[0].dispatch);  // half of the weight
  EXPECT_EQ(bsp.dispatch.ensemble.high, bsp.variants[2].dispatch);
  EXPECT_EQ(bsp.variant, "cheap");
  EXPECT_DOUBLE_EQ(bsp.dispatch.mean, bsp.variants[0].dispatch);
  EXPECT_LE(bsp.dispatch.p50, bsp.dispatch.p99);
  EXPECT_GT(bsp.dispatch.max_lane, 0);
  EXPECT_GT(bsp.effective_gbps, 0);
  // push has no barriers.
  const PathFigures& push = point.paths[1];
  EXPECT_EQ(push.dispatch.ensemble.low, push.dispatch.ensemble.high);
}

TEST(SimPointsTest, ReductionsAreTakenWithinAVariant) {
  const SimPlan plan = small_plan();
  const SimGrid grid(plan);
  const SimPoint point = points_of(plan, grid).front();
  ASSERT_EQ(point.reductions.size(), 2U);
  const Reduction& r = point.reductions[0];
  EXPECT_EQ(r.path, "push");
  const auto share = [&](std::size_t v) {
    return 1 - point.paths[1].variants[v].dispatch / point.paths[0].variants[v].dispatch;
  };
  EXPECT_DOUBLE_EQ(r.dispatch.low, share(0));
  EXPECT_DOUBLE_EQ(r.dispatch.high, share(2));
  EXPECT_EQ(point.reductions[1].path, "push:fence");
}

TEST(SimPointsTest, DoesNotRankWhatVariantsDisagreeOn) {
  SimPlan plan = small_plan();
  plan.paths = parse_contenders("bsp,push", {});
  plan.tokens = {16};
  const auto unranked = [&] {
    const SimGrid grid(plan);
    const SimPoint point = points_of(plan, grid).front();
    std::vector<std::string> operations;
    for (const Unranked& u : point.unranked) {
      EXPECT_EQ(u.a + "," + u.b, "bsp,push");
      operations.push_back(u.operation);
    }
    return operations;
  };
  plan.variants.erase(plan.variants.begin());
  EXPECT_EQ(unranked(), std::vector<std::string>{});
  // bsp, at no cost of barriers, is ahead where flags are dear; not where barriers are.
  plan.variants.insert(plan.variants.begin(), variant_of("flags", 0.5, 0));
  plan.variants[0].pod.lane.issue = sim::kMicrosecond;
  plan.variants[0].pod.lane.poll = sim::kMicrosecond;
  EXPECT_EQ(unranked(), std::vector<std::string>{"dispatch"});
  plan.variants.resize(1);
  EXPECT_EQ(unranked(), std::vector<std::string>{});
}

TEST(SimPointsTest, OneVariantsRankIsItsOrder) {
  SimPlan plan = small_plan();
  plan.variants.resize(1);
  plan.paths = parse_contenders("bsp,pull", {});
  const SimGrid grid(plan);
  for (const SimPoint& point : points_of(plan, grid)) EXPECT_TRUE(point.unranked.empty());
}

TEST(NullModelTest, IsTheBusiestRanksBytesAndTheFurthestWay) {
  sim::LayerOptions o{
      .pod = sim::flat_pod(3), .ranks = 3, .tokens = 2, .hidden = 500, .topk = 2, .experts = 3};
  // Rank 0 keeps one choice; rank 2 gets three rows of others.
  o.topk_idx = {{0, 2, 1, 2}, {2, -1, 1, -1}, {2, -1, 2, -1}};
  const NullModel null = null_model(o);
  EXPECT_DOUBLE_EQ(null.latency, 1);
  EXPECT_DOUBLE_EQ(null.dispatch, 1 + 3 * 1000 / 1e3);  // 1 GB/s
  EXPECT_DOUBLE_EQ(null.combine, null.dispatch);
  o.record_bytes = 100;
  EXPECT_DOUBLE_EQ(null_model(o).dispatch, 1 + 3 * 100 / 1e3);
  EXPECT_DOUBLE_EQ(null_model(o).combine, 4);
  o.pod.background = 500'000'000;
  EXPECT_DOUBLE_EQ(null_model(o).combine, 1 + 2 * 3);
  o.pod.tiers[0].rate = 250'000'000;
  EXPECT_DOUBLE_EQ(null_model(o).combine, 1 + 8 * 3);
  o.pod.background = o.pod.tiers[0].rate = 0;
  // Two choices on one rank are one row.
  o.layout = Layout::rank_major;
  o.experts = 6;
  o.topk_idx = {{4, 5, 4, 5}, {0, 1, 0, 1}, {4, 5, 4, 5}};
  EXPECT_DOUBLE_EQ(null_model(o).combine, 1 + 2 * 1000 / 1e3);
  o.layout = Layout::expert_major;
  EXPECT_DOUBLE_EQ(null_model(o).combine, 1 + 4 * 1000 / 1e3);
  o.ranks = 1;
  o.topk_idx.resize(1);
  EXPECT_DOUBLE_EQ(null_model(o).dispatch, 0);
}

TEST(SimOptionsTest, ContendersMayCarryAProtocol) {
  const auto all =
      parse_contenders("bsp,push,push:tff-512,push:dc:7,pull", ProtocolChoice{Protocol::fence, 0});
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].path, Path::bsp);
  EXPECT_FALSE(all[0].protocol);
  EXPECT_EQ(all[1].protocol->protocol, Protocol::fence);
  EXPECT_EQ(all[2].protocol->protocol, Protocol::token_flag_512);
  EXPECT_EQ(all[2].text, "push:tff-512");
  EXPECT_EQ(all[3].protocol->checksum_rows, 7);
  EXPECT_INPUT_ERROR(parse_contenders("bsp:fence", {}), "path bsp has no protocol");
  EXPECT_INPUT_ERROR(parse_contenders("push,push", {}), "'push' is there twice");
  EXPECT_INPUT_ERROR(parse_contenders("push,", {}), "--compare: ''");
  EXPECT_INPUT_ERROR(parse_contenders("push:soon", {}), "--protocol: 'soon'");
}

TEST(SimOptionsTest, PushTakesThePodsProtocolUnlessItNamesOne) {
  SimPlan plan = small_plan();
  plan.variants[0].pod.protocol = Protocol::sentinel;
  const auto protocol_of_path = [&](std::size_t path, std::size_t variant) {
    return plan.options(4, plan.paths[path], plan.variants[variant], 1).protocol;
  };
  EXPECT_EQ(protocol_of_path(0, 0), Protocol::automatic);  // bsp
  EXPECT_EQ(protocol_of_path(1, 0), Protocol::sentinel);
  EXPECT_EQ(protocol_of_path(1, 1), Protocol::automatic);
  EXPECT_EQ(protocol_of_path(2, 0), Protocol::fence);
}

TEST(SimOptionsTest, SweepsAreOfTokens) {
  EXPECT_EQ(parse_token_sweep("tokens=8,0,16"), (std::vector<int>{8, 0, 16}));
  EXPECT_INPUT_ERROR(parse_token_sweep("ranks=8"), "'ranks=8' is not tokens=");
  EXPECT_INPUT_ERROR(parse_token_sweep("tokens=8,x"), "--sweep tokens: 'x'");
  EXPECT_INPUT_ERROR(parse_token_sweep("tokens=8,8"), "8 is there twice");
}

}  // namespace
}  // namespace ubep::tools
