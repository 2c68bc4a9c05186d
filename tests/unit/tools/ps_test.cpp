#include "tools/ubep/ps.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ubep::tools {
namespace {

RankReport report(int rank, int size) {
  RankReport one;
  one.job = "layer";
  one.group = std::uint64_t{7} << 48;
  one.rank = rank;
  one.size = size;
  one.slots = 2;
  one.pid = 100 + rank;
  one.alive = true;
  one.state = "live";
  one.process = "sleeping";
  one.kind = OpKind::dispatch;
  one.operations = 9;
  one.epoch = 5;
  one.stage = "tokens published";
  return one;
}

RankReport waiting(int rank, int size, int peer) {
  RankReport one = report(rank, size);
  one.wait.code = Code::not_ready;
  one.wait.kind = OpKind::dispatch;
  one.wait.rank = static_cast<std::int16_t>(rank);
  one.wait.peer = static_cast<std::int16_t>(peer);
  one.wait.word = Word::pub;
  one.wait.seen = 4;
  one.wait.expected = 5;
  one.wait.missing = std::uint64_t{1} << peer;
  one.waited_ms = 1240;
  return one;
}

TEST(PsTest, NobodyWaits) {
  const std::vector<RankReport> ranks{report(0, 2), report(1, 2)};
  EXPECT_TRUE(find_culprits(ranks).empty());
  EXPECT_EQ(verdict(ranks), "");
}

TEST(PsTest, AStoppedRankIsNamed) {
  std::vector<RankReport> ranks{waiting(0, 3, 1), report(1, 3), waiting(2, 3, 1)};
  ranks[1].process = "stopped";
  EXPECT_EQ(find_culprits(ranks), (std::vector<std::size_t>{1}));
  EXPECT_EQ(verdict(ranks),
            "rank 1 (process 101, stopped) is waited for: dispatch 9 (epoch 5), tokens published\n"
            "ranks 0, 2 wait");
}

// A chain ends at the one that waits for nobody.
TEST(PsTest, AChainHasOneEnd) {
  const std::vector<RankReport> ranks{waiting(0, 3, 1), waiting(1, 3, 2), report(2, 3)};
  EXPECT_EQ(find_culprits(ranks), (std::vector<std::size_t>{2}));
}

// It was stopped while it waited itself.
TEST(PsTest, AStoppedRankThatWaitsIsNamed) {
  std::vector<RankReport> ranks{waiting(0, 2, 1), waiting(1, 2, 0)};
  ranks[1].process = "stopped";
  EXPECT_EQ(find_culprits(ranks), (std::vector<std::size_t>{1}));
}

TEST(PsTest, ARingHasNoCulprit) {
  const std::vector<RankReport> ranks{waiting(0, 2, 1), waiting(1, 2, 0)};
  EXPECT_TRUE(find_culprits(ranks).empty());
  EXPECT_NE(verdict(ranks).find("ranks 0, 1 wait for one another"), std::string::npos);
}

TEST(PsTest, TheDeadAreNamed) {
  std::vector<RankReport> ranks{waiting(0, 2, 1), report(1, 2)};
  ranks[1].alive = false;
  ranks[1].state = "dead";
  ranks[1].process = "";
  EXPECT_NE(verdict(ranks).find("rank 1 (process 101, dead)"), std::string::npos);
}

// Own experts that are not published: nobody else is to blame.
TEST(PsTest, WhoWaitsForItselfIsNamed) {
  std::vector<RankReport> ranks{waiting(0, 2, 1), waiting(1, 2, 0)};
  ranks[1].wait.peer = -1;
  ranks[1].wait.missing = 0;
  ranks[1].wait_for = "own work is not done: step() it";
  EXPECT_NE(verdict(ranks).find("own work is not done"), std::string::npos) << verdict(ranks);
}

TEST(PsTest, TextHasALineForEachRankAndGroup) {
  std::vector<RankReport> ranks{waiting(0, 2, 1), report(1, 2), report(0, 1)};
  ranks[2].group = std::uint64_t{8} << 48;
  ranks[2].job = "other";
  ranks[2].operations = 0;
  const std::string text = ps_text(ranks);
  EXPECT_NE(text.find("job 'layer', 2 ranks, group 7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("job 'other', 1 ranks, group 8\n"), std::string::npos) << text;
  EXPECT_NE(text.find("1.2 s: rank 1: pub is 4, needs 5"), std::string::npos) << text;
  EXPECT_NE(text.find("none yet"), std::string::npos) << text;
}

TEST(PsTest, RanksThatAreNotSeenAreListed) {
  EXPECT_NE(ps_text(std::vector<RankReport>{report(1, 4)}).find("looked at): 0, 2, 3\n"),
            std::string::npos);
}

TEST(PsTest, WhoHasGivenUpIsShownAsSuch) {
  std::vector<RankReport> ranks{waiting(0, 2, 1), report(1, 2)};
  ranks[0].looked_ms = 3400;
  EXPECT_NE(ps_text(ranks).find("(left the call 3.4 s ago)"), std::string::npos);
  EXPECT_EQ(verdict(std::vector<RankReport>{ranks[0], waiting(1, 2, 0)}),
            "rank 0 (process 100, sleeping) is waited for: dispatch 9 (epoch 5), tokens published; "
            "1.2 s: rank 1: pub is 4, needs 5 (left the call 3.4 s ago)\nrank 1 waits");
  ranks[0].looked_ms = 50;
  EXPECT_EQ(ps_text(ranks).find("left the call"), std::string::npos);
}

TEST(PsTest, JsonSaysWhatTheTextSays) {
  std::vector<RankReport> ranks{waiting(0, 2, 1), report(1, 2)};
  ranks[0].wait.rows = 3;
  ranks[0].wait.expert = 6;
  const auto all = nlohmann::json::parse(ps_json(ranks));
  EXPECT_EQ(all["schema"], "ubep-ps/1");
  ASSERT_EQ(all["groups"].size(), 1U);
  const auto& group = all["groups"][0];
  EXPECT_EQ(group["group"], "0007000000000000");
  EXPECT_EQ(group["held_up_by"], nlohmann::json({1}));
  const auto& first = group["ranks"][0];
  EXPECT_EQ(first["operation"]["stage"], "tokens published");
  EXPECT_EQ(first["wait"]["peer"], 1);
  EXPECT_EQ(first["wait"]["word"], "pub");
  EXPECT_EQ(first["wait"]["rows"], 3);
  EXPECT_EQ(first["wait"]["expert"], 6);
  EXPECT_EQ(first["wait"]["missing"], nlohmann::json({1}));
  EXPECT_TRUE(group["ranks"][1]["wait"].is_null());
}

TEST(PsTest, NoRanksMakeNoGroups) {
  EXPECT_EQ(ps_text({}), "");
  EXPECT_TRUE(nlohmann::json::parse(ps_json({}))["groups"].empty());
}

}  // namespace
}  // namespace ubep::tools
