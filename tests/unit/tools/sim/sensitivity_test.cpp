#include "tools/ubep/sim/sensitivity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/unit/sim/pods.hpp"
#include "tests/unit/tools/test_support.hpp"
#include "tools/ubep/sim/parameters.hpp"

namespace ubep::tools {
namespace {

TEST(PodParametersTest, AreThoseThatAreNotZero) {
  sim::Pod pod = sim::flat_pod(4);
  pod.lane.poll = 30;
  pod.lane.put = 0;
  std::vector<std::string> names;
  for (const PodParameter& p : parameters_of(pod)) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"port_gb_s", "memory_gb_s", "block_bytes",
                                             "tiers.0.latency_ns", "lane.poll_ns"}));
}

TEST(PodParametersTest, EachScalesOneNumber) {
  const sim::Pod pod = sim::read_pod(sim::generic_pod());
  const auto all = parameters_of(pod);
  const auto scaled = [&](const char* name, double factor) {
    sim::Pod copy = pod;
    const auto p =
        std::find_if(all.begin(), all.end(), [&](const auto& q) { return q.name == name; });
    if (p == all.end()) ADD_FAILURE() << name;
    if (p != all.end()) p->scale(copy, factor);
    return copy;
  };
  EXPECT_EQ(scaled("port_gb_s", 0.8).port, pod.port * 4 / 5);
  EXPECT_EQ(scaled("port_gb_s", 0.8).memory, pod.memory);
  EXPECT_EQ(scaled("tiers.1.uplink_gb_s", 1.2).tiers[1].uplink, pod.tiers[1].uplink * 6 / 5);
  EXPECT_EQ(scaled("lane.barrier_ns", 1.2).lane.barrier, pod.lane.barrier * 6 / 5);
  EXPECT_EQ(scaled("lane.poll_ns", 0).lane.poll, 1U);
}

TEST(PodParametersTest, OnesOfBspAndOfTiersAreThere) {
  sim::Pod pod = sim::flat_pod(4, 1000);
  pod.tiers[0].rate = 900;
  pod.bsp = sim::LaneCosts{};
  pod.bsp->poll = 10;
  pod.lane.signal = 20;
  const auto all = parameters_of(pod);
  const auto scaled = [&](const char* name, double factor) {
    sim::Pod copy = pod;
    for (const PodParameter& p : all) {
      if (p.name == name) p.scale(copy, factor);
    }
    return copy;
  };
  EXPECT_EQ(scaled("bsp.poll_ns", 1.2).bsp->poll, 12U);
  EXPECT_EQ(scaled("lane.signal_ns", 0.8).lane.signal, 16U);
  EXPECT_EQ(scaled("tiers.0.rate_gb_s", 0.8).tiers[0].rate, 720U);
  EXPECT_EQ(scaled("tiers.0.rate_gb_s", 1.2).tiers[0].rate, 1000U);  // of the port, at most
  EXPECT_EQ(scaled("port_gb_s", 0.8).tiers[0].rate, 800U);
}

SimPlan small_plan() {
  SimPlan plan;
  plan.base = {.ranks = 5, .hidden = 1024, .topk = 2, .experts = 10};
  plan.lanes = 2;
  plan.variants = {{.name = "base", .weight = 1, .pod = sim::read_pod(sim::generic_pod())}};
  plan.paths = parse_contenders("push,bsp", {});
  plan.tokens = {8};
  plan.seeds = {1};
  plan.routing = "uniform";
  plan.jobs = 2;
  return plan;
}

TEST(SensitivityTest, TellsWhatBarriersMove) {
  const Sensitivity s = measure_sensitivity(small_plan());
  EXPECT_EQ(s.metrics, (std::vector<std::string>{"push dispatch", "push combine", "bsp dispatch",
                                                 "bsp combine", "push dispatch, less than bsp",
                                                 "push combine, less than bsp"}));
  const auto row = std::find_if(s.rows.begin(), s.rows.end(),
                                [](const auto& r) { return r.parameter == "lane.barrier_ns"; });
  ASSERT_NE(row, s.rows.end());
  EXPECT_EQ(row->less[0], 0);  // push has none
  EXPECT_LT(row->less[2], 0);
  EXPECT_GT(row->more[2], 0);
  EXPECT_LT(row->less[4], 0);
  EXPECT_GT(row->more[4], 0);
}

TEST(SensitivityTest, TheChartShowsEachMetricAndParameter) {
  const Sensitivity s = measure_sensitivity(small_plan());
  const std::string svg = tornado_svg(s, "a title");
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* text : {"a title", "push dispatch: ", "bsp combine: ", "lane.barrier_ns"}) {
    EXPECT_PRED2(contains, svg, text);
  }
  for (const char digit : std::string("0123456789")) {
    EXPECT_EQ(svg.find(std::string("#") + digit), std::string::npos);
  }
  EXPECT_FALSE(contains(svg, "nan"));
}

}  // namespace
}  // namespace ubep::tools
