#include "tools/ubep/sim/trace.hpp"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/unit/sim/pods.hpp"
#include "tools/ubep/breakdown.hpp"

namespace ubep::tools {
namespace {

using Json = nlohmann::json;

struct Traced {
  sim::LayerResult result;
  std::vector<sim::LaneSlice> slices;
  Json events;
};

Traced traced(Path path) {
  Traced t;
  sim::LayerOptions o{.pod = sim::read_pod(sim::generic_pod()),
                      .ranks = 3,
                      .lanes = 2,
                      .tokens = 5,
                      .hidden = 512,
                      .topk = 2,
                      .experts = 7};
  o.path = path;
  const sim::LayerResult plain = sim::run_layer(o);
  o.slices = &t.slices;
  t.result = sim::run_layer(o);
  EXPECT_EQ(plain.events, t.result.events);
  const Json json = Json::parse(trace_json(t.result, t.slices));
  EXPECT_EQ(json.at("displayTimeUnit"), "ns");
  t.events = json.at("traceEvents");
  return t;
}

TEST(SimTraceTest, EventsAreWellFormed) {
  const Traced t = traced(Path::push);
  std::set<std::pair<int, int>> named;
  std::set<std::string> names;
  std::map<std::pair<int, int>, double> ends;
  for (const Json& event : t.events) {
    const std::pair thread(event.at("pid").get<int>(), event.at("tid").get<int>());
    EXPECT_GT(thread.first, 0);
    if (event.at("ph") == "M") {
      names.insert(event.at("args").at("name").get<std::string>());
      if (event.at("name") == "thread_name") {
        EXPECT_TRUE(named.insert(thread).second);
      }
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    EXPECT_TRUE(named.contains(thread));
    // Slices of one thread follow each other.
    EXPECT_GE(event.at("ts").get<double>(), ends[thread] - 1e-9);
    EXPECT_GE(event.at("dur").get<double>(), 0);
    ends[thread] = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  EXPECT_EQ(named.size(), 3U * 3);
  for (const char* name : {"rank 0", "rank 2", "operations", "lane 0", "lane 1"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// A lane's slices add up to what its breakdown says.
TEST(SimTraceTest, SlicesAreTheBreakdown) {
  for (const Path path : {Path::push, Path::bsp, Path::pull}) {
    const Traced t = traced(path);
    for (std::size_t r = 0; r < t.result.ranks.size(); ++r) {
      const sim::RankTimes& rank = t.result.ranks[r];
      for (std::size_t lane = 0; lane < rank.dispatch_lanes.size(); ++lane) {
        std::array<sim::Time, kActivities> sums = {};
        for (const sim::LaneSlice& s : t.slices) {
          if (s.rank != static_cast<int>(r) || s.lane != static_cast<int>(lane)) continue;
          EXPECT_LT(s.begin, s.end);
          sums[static_cast<std::size_t>(s.activity)] += s.end - s.begin;
        }
        for (std::size_t a = 0; a < kActivities; ++a) {
          EXPECT_EQ(sums[a], rank.dispatch_lanes[lane].spent[a] + rank.combine_lanes[lane].spent[a])
              << kActivityNames[a];
        }
      }
    }
  }
}

}  // namespace
}  // namespace ubep::tools
