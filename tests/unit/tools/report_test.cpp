#include "tools/ubep/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_support.hpp"

namespace ubep::tools {
namespace {

using nlohmann::json;

Timing timing_of(double p50_us) {
  return {.us = {.avg = p50_us + 1, .min = p50_us - 1, .p50 = p50_us, .p99 = 90, .max = 99}};
}

// Two paths at one point: the first has all there is, the second the least.
BenchResult sample() {
  PathResult read{.path = "read",
                  .variant = "",
                  .store = "far",
                  .protocol = "",
                  .layout = "rank_major",
                  .chosen_by = "auto",
                  .reason = "flag 250 ns"};
  read.dispatch = timing_of(10);
  read.dispatch->wire_gbps = 12.34567;
  read.dispatch->dedup_gbps = 6;
  read.combine = timing_of(20);
  read.round_trip = timing_of(32);
  read.cycle = timing_of(40);
  read.time_share =
      TimeShare{.copy = 0.5, .wait_flag = 0.25, .wait_base = 0, .barrier = 0.125, .idle = 0.125};
  read.copies = Copies{1.5, 0.5};
  read.roles = Roles{1, 2, 1};
  PathResult bsp{.path = "bsp",
                 .variant = "nt",
                 .store = "far",
                 .protocol = "",
                 .layout = "expert_major",
                 .chosen_by = "user",
                 .reason = ""};
  bsp.dispatch = timing_of(15);
  bsp.round_trip = timing_of(64);

  Point point{.ranks = 2, .tokens = {32, 8}, .load = {.expert_max_over_mean = 1.2}};
  point.memory = MemoryUse{.reserved = 4096, .resident = 1024};
  point.first_call_us = 500;
  point.check = Check{.passed = true, .mismatches = 0, .calc_diff = 1e-7};
  point.paths = {read, bsp};
  BenchResult result{.version = "0.1.0"};
  result.machine = {2, "a CPU", {Placement::near, 60.25, 1.0}};
  result.config = {.hidden = 2048, .topk = 8, .experts = 128, .iters = 200};
  result.points = {point, Point{.ranks = 4, .tokens = {}}};
  return result;
}

std::string table_of(const BenchResult& result) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  print_table(result, out);
  std::fclose(out);
  const std::string table(text, size);
  std::free(text);
  return table;
}

TEST(ReportTest, WritesTheWholeSchema) {
  const json expected = json::parse(R"({"schema":"ubep-bench/1","version":"0.1.0",
    "machine":{"cpus":2,"model":"a CPU","placement":"near","flag_one_way_ns":60.25},
    "config":{"hidden":2048,"topk":8,"experts":128,"dtype":"bf16","quant":"none",
      "routing":"uniform","lanes":1,"slots":2,"iters":200,"seed":1},
    "points":[{"ranks":2,"tokens":[32,8],
      "load":{"expert_max_over_mean":1.2,"rank_max_over_mean":1.0},
      "memory":{"reserved":4096,"resident":1024},"first_call_us":500,
      "check":{"passed":true,"mismatches":0,"calc_diff":1e-7},
      "paths":[
        {"path":"read","variant":"","store":"far","protocol":"","layout":"rank_major",
          "chosen_by":"auto","reason":"flag 250 ns",
          "dispatch":{"avg":11,"min":9,"p50":10,"p99":90,"max":99,"wire_gbps":12.346,
            "dedup_gbps":6},
          "combine":{"avg":21,"min":19,"p50":20,"p99":90,"max":99},
          "round_trip":{"avg":33,"min":31,"p50":32,"p99":90,"max":99},
          "cycle":{"avg":41,"min":39,"p50":40,"p99":90,"max":99},
          "ratio_to_first":{"dispatch":1,"combine":1,"round_trip":1,"cycle":1},
          "payload_copies":{"dispatch":1.5,"combine":0.5},
          "roles":{"count":1,"send":2,"receive":1},
          "time_share":{"copy":0.5,"wait_flag":0.25,"wait_base":0,"barrier":0.125,"idle":0.125}},
        {"path":"bsp","variant":"nt","store":"far","protocol":"","layout":"expert_major",
          "chosen_by":"user","reason":"",
          "dispatch":{"avg":16,"min":14,"p50":15,"p99":90,"max":99},
          "round_trip":{"avg":65,"min":63,"p50":64,"p99":90,"max":99},
          "ratio_to_first":{"dispatch":1.5,"round_trip":2}}]},
      {"ranks":4,"tokens":[],"load":{"expert_max_over_mean":1.0,"rank_max_over_mean":1.0},
       "paths":[]}]})");
  const json actual = json::parse(to_json(sample()).dump());
  EXPECT_EQ(actual, expected) << json::diff(expected, actual).dump(1);
}

TEST(ReportTest, KeepsTheOrderOfTheSchema) {
  const std::string text = to_json(sample()).dump();
  EXPECT_TRUE(text.starts_with(R"({"schema":"ubep-bench/1","version":"0.1.0","machine":{"cpus":)"));
}

TEST(ReportTest, HasTheAblationInsteadOfPaths) {
  BenchResult result = sample();
  result.config.lanes = {1, 4};
  AblationEntry bsp{.step = "bsp", .path = "bsp"};
  result.points[0].paths.clear();
  result.points[0].ablation = {bsp};
  const auto written = to_json(result);
  EXPECT_EQ(written["config"]["lanes"].dump(), "[1,4]");
  EXPECT_EQ(written["points"][0]["ablation"][0]["step"], "bsp");
  EXPECT_FALSE(written["points"][1].contains("ablation"));
  const std::string table = table_of(result);
  EXPECT_PRED2(contains, table, "lanes 1,4,");
  EXPECT_PRED2(contains, table, "ablation expert_major");
  EXPECT_FALSE(contains(table, "path@layout"));
}

TEST(ReportTest, TellsWhatCrossedBetweenHosts) {
  BenchResult result = sample();
  EXPECT_FALSE(contains(table_of(result), "crossed"));
  result.points[0].hosts = Hosts{{0, 1}, {"a", "b"}, "UCX 1.2"};
  result.points[0].paths[0].crossed = Crossed{1536, 1024};
  result.points[0].paths[1].crossed = Crossed{512, 0};  // no token needed to
  const auto point = to_json(result)["points"][0];
  EXPECT_EQ(point["hosts"]["of_rank"].dump(), "[0,1]");
  EXPECT_EQ(point["hosts"]["transport"], "UCX 1.2");
  const auto crossed = point["paths"][0]["between_hosts"];
  EXPECT_EQ(crossed["bytes_per_cycle"], 1536);
  EXPECT_EQ(crossed["minimum_bytes_per_cycle"], 1024);
  EXPECT_EQ(crossed["bytes_over_minimum"], 1.5);
  EXPECT_FALSE(point["paths"][1]["between_hosts"].contains("bytes_over_minimum"));
  const std::string table = table_of(result);
  EXPECT_PRED2(contains, table, "the longest that any rank took by its own clock");
  EXPECT_PRED2(contains, table, "     1.5 (1.500)\n");
  EXPECT_PRED2(contains, table, "         0.5 (-)\n");
}

TEST(ReportTest, LeavesOutWhatIsUnknown) {
  BenchResult result = sample();
  result.machine.probe = {};
  result.probe_after = PlacementProbe{Placement::far, 250.0, 1.0};
  const auto machine = to_json(result)["machine"];
  EXPECT_EQ(machine["placement"], "unknown");
  EXPECT_FALSE(machine.contains("flag_one_way_ns"));
  EXPECT_EQ(machine["placement_after"], "far");
  EXPECT_EQ(machine["flag_one_way_ns_after"], 250);

  result.points[0].check = Check{.passed = false, .mismatches = 3, .calc_diff = std::nan("")};
  result.points[0].paths[0].dispatch->us.p50 = 0;  // no ratio to nothing
  const json parsed = json::parse(to_json(result).dump());
  EXPECT_TRUE(parsed["points"][0]["check"]["calc_diff"].is_null());
  EXPECT_FALSE(parsed["points"][0]["paths"][1]["ratio_to_first"].contains("dispatch"));
}

TEST(ReportTest, PrintsOneRowPerPath) {
  const std::string table = table_of(sample());
  EXPECT_TRUE(table.starts_with("machine  2 CPUs, a CPU, placement near, flag 60 ns one way\n"));
  EXPECT_PRED2(contains, table, "read@rank_major");
  EXPECT_PRED2(contains, table, "bsp:nt@expert_major");
  EXPECT_PRED2(contains, table, "8-32");
  EXPECT_PRED2(contains, table, "10.0 (90.0)");
  EXPECT_PRED2(contains, table, "12.3/-");
  EXPECT_PRED2(contains, table, "2.00/-\n");
  EXPECT_FALSE(contains(table, "FAILED"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 6);
}

TEST(ReportTest, ShowsAFailedCheckAndAMove) {
  BenchResult result = sample();
  result.points[0].check = Check{.passed = false, .mismatches = 3, .calc_diff = 0.5};
  result.probe_after = PlacementProbe{};
  const std::string table = table_of(result);
  EXPECT_PRED2(contains, table, "CHECK FAILED: 3 mismatches, calc_diff 0.5\n");
  EXPECT_PRED2(contains, table, "; afterwards placement unknown\n");
}

}  // namespace
}  // namespace ubep::tools
