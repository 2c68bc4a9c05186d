#include "tools/ubep/ablation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/test_support.hpp"

namespace ubep::tools {
namespace {

constexpr auto kDispatch = AblationTime::dispatch;

Breakdown spent(double send, double wait, double barrier) {
  Breakdown b;
  b.us[static_cast<std::size_t>(Activity::send)] = send;
  b.us[static_cast<std::size_t>(Activity::wait_flag)] = wait;
  b.us[static_cast<std::size_t>(Activity::barrier)] = barrier;
  return b;
}

// All four times are the same, and so are both breakdowns.
AblationEntry entry(const char* step, double p50, const Breakdown& lanes) {
  AblationEntry e{.step = step, .lanes = 4, .path = "push", .store = "far"};
  e.us.fill({.min = p50 - 2, .p25 = p50 - 1, .p50 = p50, .p75 = p50 + 1, .p99 = p50 + 9});
  e.blocks = 4;
  e.spent = {lanes, lanes};
  return e;
}

TEST(AblationTest, StepsAreBuiltOnEarlierOnes) {
  const auto& steps = ablation_steps();
  EXPECT_EQ(steps[0].path, Path::bsp);
  EXPECT_EQ(steps[0].on, 0u);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    EXPECT_LT(steps[i].on, i) << steps[i].name;
    EXPECT_EQ(steps[i].path, Path::push) << steps[i].name;
  }
}

TEST(AblationTest, NoiseFallsWithTheBlocks) {
  const Summary us{.p25 = 8, .p50 = 10, .p75 = 12};
  EXPECT_DOUBLE_EQ(noise_of(us, 1), 1.57 * 4);
  EXPECT_DOUBLE_EQ(noise_of(us, 4), 1.57 * 2);
  EXPECT_DOUBLE_EQ(noise_of(us, 0), 1.57 * 4);
}

TEST(AblationTest, WaitsExplainAGain) {
  // Half of 100 waited before, a sixth of 60 after: 40 us less waiting, and as much work.
  const auto saved =
      saving(entry("a", 100, spent(50, 30, 20)), entry("b", 60, spent(50, 10, 0)), kDispatch);
  ASSERT_TRUE(saved);
  EXPECT_NEAR(saved->gained, 40, 1e-9);
  EXPECT_NEAR(saved->waits, 40, 1e-9);
  EXPECT_NEAR(saved->work, 0, 1e-9);
  EXPECT_NEAR(saved->noise, 1.57 * std::sqrt(2), 1e-9);
  EXPECT_EQ(saved->verdict, Verdict::waits);
}

TEST(AblationTest, SharesAreOfTheReportedTime) {
  // Traced phases took twice as long.
  const auto saved =
      saving(entry("a", 100, spent(100, 100, 0)), entry("b", 50, spent(100, 0, 0)), kDispatch);
  EXPECT_NEAR(saved->waits, 50, 1e-9);
  EXPECT_NEAR(saved->work, 0, 1e-9);
}

TEST(AblationTest, FlagsAGainBeyondTheWaits) {
  const AblationEntry before = entry("a", 100, spent(60, 40, 0));
  EXPECT_EQ(saving(before, entry("b", 60, spent(30, 30, 0)), kDispatch)->verdict, Verdict::work);
  const auto odd = saving(before, entry("c", 60, spent(0, 0, 0)), kDispatch);
  EXPECT_EQ(odd->verdict, Verdict::waits) << "all waits are gone";
  Breakdown idle;
  idle.us[static_cast<std::size_t>(Activity::idle)] = 50;
  EXPECT_EQ(saving(entry("a", 100, idle), entry("d", 50, idle), kDispatch)->verdict,
            Verdict::unexplained);
  EXPECT_EQ(saving(entry("a", 100, idle), entry("d", 98, idle), kDispatch)->verdict,
            Verdict::no_gain)
      << "within the noise";
  EXPECT_EQ(saving(before, entry("e", 150, spent(60, 90, 0)), kDispatch)->verdict,
            Verdict::no_gain);
}

TEST(AblationTest, NothingToSayWithoutABreakdown) {
  const AblationEntry a = entry("a", 100, spent(60, 40, 0));
  AblationEntry b = entry("b", 60, spent(60, 0, 0));
  EXPECT_FALSE(saving(a, a, kDispatch));
  EXPECT_FALSE(saving(a, b, AblationTime::cycle));
  b.spent.reset();
  EXPECT_FALSE(saving(a, b, kDispatch));
}

std::vector<AblationEntry> sample() {
  std::vector<AblationEntry> entries = {entry("bsp", 100, spent(50, 30, 20)),
                                        entry("+ roles", 50, spent(50, 0, 0)),
                                        entry("+ tff", 40, spent(40, 0, 0))};
  entries[0].path = "bsp";
  entries[0].dispatch_copies = 2;
  entries[1].roles = {.count = 1, .send = 2, .receive = 1};
  entries[2].on = 1;
  return entries;
}

std::string table_of(const std::vector<AblationEntry>& entries) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  print_ablation(entries, out);
  std::fclose(out);
  const std::string table(text, size);
  std::free(text);
  return table;
}

TEST(AblationTest, WritesTheWholeSchema) {
  const auto json = to_json(sample());
  ASSERT_EQ(json.size(), 3u);
  const auto& roles = json[1];
  for (const char* key : {"step", "on", "lanes", "path", "store", "roles", "payload_copies",
                          "traced", "dispatch", "combine", "round_trip", "cycle"}) {
    EXPECT_TRUE(roles.contains(key)) << key;
  }
  EXPECT_EQ(roles.size(), 12u);
  EXPECT_EQ(roles["on"], "bsp");
  EXPECT_EQ(roles["roles"].dump(), R"({"count":1,"send":2,"receive":1})");
  EXPECT_EQ(nlohmann::json(roles["dispatch"]), nlohmann::json::parse(R"({"p50":50,"min":48,"p25":49,
      "p75":51,"p99":59,"gain_over_step":2,"gain_over_first":2,"sync_share":0,
      "lane_us":{"count":0,"send":50,"receive":0,"wait_flag":0,"wait_base":0,"barrier":0,"idle":0},
      "last_row_us":{"mean":0,"max":0},
      "saved":{"gained_us":50,"noise_us":2.22,"waits_us":50,"work_us":0,"verdict":"waits"}})"))
      << roles["dispatch"].dump(1);
  EXPECT_EQ(json[0]["dispatch"]["sync_share"], 0.5);
  EXPECT_FALSE(json[0]["dispatch"].contains("saved"));
  EXPECT_FALSE(json[2]["cycle"].contains("lane_us"));
  EXPECT_EQ(json[2]["cycle"]["gain_over_step"], 1.25);
  EXPECT_EQ(json[2]["cycle"]["gain_over_first"], 2.5);
  EXPECT_EQ(json[2]["round_trip"]["lane_us"]["send"], 80);
}

TEST(AblationTest, PrintsTimesBreakdownsAndSavings) {
  const std::string table = table_of(sample());
  EXPECT_PRED2(contains, table, "1:2:1");
  EXPECT_PRED2(contains, table, "1.25/2.50");
  EXPECT_PRED2(contains, table, "50.0%");
  EXPECT_PRED2(contains, table, "waits explain it\n");
  EXPECT_PRED2(contains, table, "MORE THAN THE WAITS: work was saved, too\n");
  EXPECT_EQ(table_of({}), "");
}

TEST(AblationTest, SaysThatTheLibraryDoesNotTrace) {
  std::vector<AblationEntry> entries = sample();
  for (AblationEntry& e : entries) e.spent.reset();
  const std::string table = table_of(entries);
  EXPECT_PRED2(contains, table, "1.25/2.50");
  EXPECT_PRED2(contains, table, "UBEP_TRACE=OFF\n");
  EXPECT_FALSE(contains(table, "saved us"));
  const auto json = to_json(entries);
  EXPECT_EQ(json[1]["traced"], false);
  EXPECT_FALSE(json[1]["dispatch"].contains("saved"));
  EXPECT_FALSE(json[1]["dispatch"].contains("lane_us"));
}

}  // namespace
}  // namespace ubep::tools
