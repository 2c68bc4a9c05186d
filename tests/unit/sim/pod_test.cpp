#include "sim/pod.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/sim/pods.hpp"
#include "tests/unit/tools/test_support.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

using tools::TempFolder;

// Line 1 is the brace; every key has a line of its own, and every tier begins one.
const std::string kPod = R"({
  "name": "small",
  "ranks": 8,
  "lanes": 2,
  "port_gb_s": 100,
  "memory_gb_s": 200.5,
  "block_bytes": 4096,
  "jitter_ns": 1.5,
  "tiers": [
    {
      "name": "node",
      "ranks": 4,
      "latency_ns": 500
    },
    {
      "name": "lane",
      "ranks": 8,
      "latency_ns": 1500,
      "uplink_gb_s": 800
    }
  ],
  "lane": {
    "issue_ns": 50,
    "poll_ns": 20,
    "fence_ns": 10,
    "put_gb_s": 20,
    "copy_gb_s": 40,
    "reduce_gb_s": 41,
    "plan_gb_s": 2,
    "window_bytes": 65536
  }
}
)";

// The text with its n-th `from` replaced.
std::string with(std::string text, const std::string& from, const std::string& to, int nth = 1) {
  std::size_t at = text.find(from);
  for (int i = 1; i < nth && at != std::string::npos; ++i) at = text.find(from, at + 1);
  if (at == std::string::npos) {
    ADD_FAILURE() << "no " << from;
    return text;
  }
  return text.replace(at, from.size(), to);
}

class PodTest : public testing::Test {
 protected:
  // What read_pod() says about the text, without the name of the file.
  std::string error_of(const std::string& text) {
    const std::string path = folder_.put("pod.json", text);
    try {
      (void)read_pod(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      EXPECT_EQ(what.substr(0, path.size() + 1), path + ":");
      return what.substr(std::min(path.size() + 1, what.size()));
    }
    return "no error";
  }

  TempFolder folder_;
};

TEST_F(PodTest, ReadsEveryKey) {
  const Pod pod = read_pod(folder_.put("pod.json", kPod));
  EXPECT_EQ(pod.name, "small");
  EXPECT_EQ(pod.ranks, 8);
  EXPECT_EQ(pod.lanes, 2);
  EXPECT_EQ(pod.port, 100'000'000'000U);
  EXPECT_EQ(pod.memory, 200'500'000'000U);
  EXPECT_EQ(pod.block, 4096U);
  EXPECT_EQ(pod.jitter, 1500U);
  ASSERT_EQ(pod.tiers.size(), 2U);
  EXPECT_EQ(pod.tiers[0].name, "node");
  EXPECT_EQ(pod.tiers[0].ranks, 4);
  EXPECT_EQ(pod.tiers[0].latency, 500 * kNanosecond);
  EXPECT_EQ(pod.tiers[0].uplink, 0U);
  EXPECT_EQ(pod.tiers[1].latency, 1500 * kNanosecond);
  EXPECT_EQ(pod.tiers[1].uplink, 800'000'000'000U);
  EXPECT_EQ(pod.lane.issue, 50 * kNanosecond);
  EXPECT_EQ(pod.lane.poll, 20 * kNanosecond);
  EXPECT_EQ(pod.lane.fence, 10 * kNanosecond);
  EXPECT_EQ(pod.lane.put, 20'000'000'000U);
  EXPECT_EQ(pod.lane.copy, 40'000'000'000U);
  EXPECT_EQ(pod.lane.reduce, 41'000'000'000U);
  EXPECT_EQ(pod.lane.plan, 2'000'000'000U);
  EXPECT_EQ(pod.lane.window, 65536U);
}

TEST_F(PodTest, ReadsTheGenericPod) {
  const Pod pod = read_pod(generic_pod());
  EXPECT_EQ(pod.name, "generic");
  EXPECT_EQ(pod.tiers.back().ranks, pod.ranks);
  EXPECT_GT(pod.port, 0U);
}

TEST_F(PodTest, KeysThatCanBeLeftOut) {
  const std::string no_uplink = with(kPod, "1500,\n      \"uplink_gb_s\": 800", "1500");
  EXPECT_EQ(read_pod(folder_.put("a", no_uplink)).tiers[1].uplink, 0U);
  const std::string no_window = with(kPod, "2,\n    \"window_bytes\": 65536", "2");
  EXPECT_EQ(read_pod(folder_.put("b", no_window)).lane.window, 0U);
  EXPECT_EQ(read_pod(folder_.put("c", with(kPod, ": 800", ": 0"))).tiers[1].uplink, 0U);
}

TEST_F(PodTest, OrderAndWhiteSpaceMeanNothing) {
  const std::string lane_first = R"({"lane": {"plan_gb_s": 2, "issue_ns": 0, "poll_ns": 0,
      "fence_ns": 0, "put_gb_s": 1, "copy_gb_s": 1, "reduce_gb_s": 1}, "jitter_ns": 0,
      "tiers": [{"latency_ns": 0, "ranks": 2, "name": "{[\"\\"}], "ranks": 2.0, "lanes": 1,
      "block_bytes": 16, "memory_gb_s": 1, "port_gb_s": 1, "na\u006de": "a"})";
  const Pod pod = read_pod(folder_.put("pod.json", "\xef\xbb\xbf\r\n" + lane_first));
  EXPECT_EQ(pod.tiers[0].name, "{[\"\\");
}

TEST_F(PodTest, MissingKeys) {
  EXPECT_EQ(error_of(with(kPod, "\"lanes\": 2,\n", "\n")), "1: lanes is missing");
  // Names of the same kind elsewhere do not count.
  EXPECT_EQ(error_of(with(kPod, "  \"name\": \"small\",\n", "\n")), "1: name is missing");
  EXPECT_EQ(error_of(with(kPod, "\"ranks\": 4,\n", "\n")), "10: tiers[0].ranks is missing");
  EXPECT_EQ(error_of(with(kPod, "\"name\": \"lane\",\n", "\n")), "15: tiers[1].name is missing");
  EXPECT_EQ(error_of(with(kPod, "\"put_gb_s\": 20,\n", "\n")), "22: lane.put_gb_s is missing");
}

TEST_F(PodTest, UnknownKeys) {
  const std::string what = " is not a key of a pod";
  EXPECT_EQ(error_of(with(kPod, "\"lanes\"", "\"x\": 1, \"lanes\"")), "4: x" + what);
  EXPECT_EQ(error_of(with(kPod, "\"latency_ns\": 1500", "\"port_gb_s\": 1, \"latency_ns\": 1500")),
            "18: tiers[1].port_gb_s" + what);
  EXPECT_EQ(error_of(with(kPod, "\"plan_gb_s\"", "\"name\": 1, \"plan_gb_s\"")),
            "29: lane.name" + what);
}

TEST_F(PodTest, KeysThatAreThereTwice) {
  EXPECT_EQ(error_of(with(kPod, "\"lanes\": 2,", "\"lanes\": 2,\n \"lanes\": 3,")),
            "5: lanes is there twice");
  EXPECT_EQ(error_of(with(kPod, "\"ranks\": 8,", "\"ranks\": 8,\n \"ranks\": 8,", 2)),
            "18: tiers[1].ranks is there twice");
}

TEST_F(PodTest, WrongTypes) {
  EXPECT_EQ(error_of(with(kPod, "\"small\"", "17")), "2: name is 17, expected a text");
  EXPECT_EQ(error_of(with(kPod, ": 4096", ": \"many\"")),
            "7: block_bytes is \"many\", expected a number");
  EXPECT_EQ(error_of(with(kPod, ": 2,", ": 2.5,")), "4: lanes is 2.5, expected an integer");
  EXPECT_EQ(error_of(with(kPod, ": 1500", ": null")),
            "18: tiers[1].latency_ns is null, expected a number");
  EXPECT_EQ(error_of(with(kPod, ": 65536", ": true")),
            "30: lane.window_bytes is true, expected a number");
  EXPECT_EQ(error_of(with(kPod, ": 65536", ": 0.5")),
            "30: lane.window_bytes is 0.5, expected an integer");
  EXPECT_EQ(error_of("\n\n[1]\n"), "3: is [1], expected an object");
  EXPECT_EQ(error_of("7\n"), "1: is 7, expected an object");
}

TEST_F(PodTest, WrongShapes) {
  const std::string before = kPod.substr(0, kPod.find("\"tiers\""));
  const std::string after = kPod.substr(kPod.find("\"lane\": {"));
  EXPECT_EQ(error_of(before + "\"tiers\": {},\n" + after), "9: tiers expected a list of tiers");
  EXPECT_EQ(error_of(before + "\"tiers\": [],\n" + after), "9: tiers expected a list of tiers");
  EXPECT_EQ(error_of(before +
                     "\"tiers\": [\n{\"name\": \"{\", \"ranks\": 8, \"latency_ns\": 1},\n"
                     "5],\n" +
                     after),
            "11: tiers[1] is 5, expected an object");
  EXPECT_EQ(error_of(kPod.substr(0, kPod.find("\"lane\": {")) + "\"lane\":\n 5}\n"),
            "23: lane is 5, expected an object");
}

TEST_F(PodTest, OutOfRange) {
  EXPECT_EQ(error_of(with(kPod, ": 8,", ": 0,")), "3: ranks is 0, expected 1 to 1024");
  EXPECT_EQ(error_of(with(kPod, ": 8,", ": 1025,")), "3: ranks is 1025, expected 1 to 1024");
  EXPECT_EQ(error_of(with(kPod, ": 2,", ": 65,")), "4: lanes is 65, expected 1 to 64");
  EXPECT_EQ(error_of(with(kPod, ": 100,", ": 0,")), "5: port_gb_s is 0, expected 0.001 to 1000000");
  EXPECT_EQ(error_of(with(kPod, ": 4096", ": 15")), "7: block_bytes is 15, expected 16 to 1048576");
  EXPECT_EQ(error_of(with(kPod, ": 1.5", ": -1")), "8: jitter_ns is -1, expected 0 to 1000000000");
  // So small that it would be 0, which means no limit.
  EXPECT_EQ(error_of(with(kPod, ": 800", ": 1e-12")),
            "19: tiers[1].uplink_gb_s is 1e-12, expected 0.001 to 1000000");
  EXPECT_EQ(error_of(with(kPod, ": 65536", ": -1")),
            "30: lane.window_bytes is -1, expected 0 to 1000000000000");
}

TEST_F(PodTest, NumbersThatAreNone) {
  EXPECT_EQ(error_of(with(kPod, ": 20,", ": 1e300,", 2)),
            "26: lane.put_gb_s is 1e+300, expected 0.001 to 1000000");
  EXPECT_EQ(error_of(with(kPod, ": 8,", ": 99999999999999999999,", 2)),
            "17: tiers[1].ranks is 1e+20, expected 1 to 1024");
  EXPECT_EQ(error_of(with(kPod, ": 8,", ": 18446744073709551615,", 2)),
            "17: tiers[1].ranks is 18446744073709551615, expected 1 to 1024");
  for (const char* number : {"NaN", "Infinity", "-inf", "0x10", "1e400", "-1e999"}) {
    const std::string text = error_of(with(kPod, ": 41", std::string(": ") + number));
    EXPECT_EQ(text.substr(0, 4), "28: ") << text;
  }
}

TEST_F(PodTest, TiersThatDoNotFit) {
  EXPECT_EQ(error_of(with(kPod, ": 4,", ": 3,")),
            "17: tiers[1].ranks is 8, expected a multiple of 3, the tier before");
  EXPECT_EQ(error_of(with(kPod, ": 4,", ": 8,")),
            "17: tiers[1].ranks is 8, expected a multiple of 8, the tier before");
  EXPECT_EQ(error_of(with(kPod, ": 8,", ": 16,")), "9: tiers end with 8 ranks, the pod has 16");
  EXPECT_EQ(error_of(with(kPod, ": 500", ": 500, \"uplink_gb_s\": 1")),
            "13: tiers[0].uplink_gb_s of the first tier has no meaning");
}

// The small pod on mapped memory, one line longer.
std::string mapped_pod() {
  return with(with(kPod, "      \"uplink_gb_s\": 800\n", "      \"uplink_gb_s\": 0\n"),
              "\"jitter_ns\": 1.5,",
              "\"jitter_ns\": 0, \"mapped\": \"far\", \"launch_ns\": 7,\n"
              "\"combine\": {\"read_gb_s\": 6, \"copy_gb_s\": 5}, "
              "\"bsp\": {\"put_gb_s\": 9}, \"bsp_combine\": {\"copy_gb_s\": 4},");
}
std::string readable_pod() {
  return with(mapped_pod(), "\"issue_ns\"", "\"read_gb_s\": 3, \"read_ns\": 2, \"issue_ns\"");
}

TEST_F(PodTest, MappedMemory) {
  const Pod pod = read_pod(folder_.put("mapped.json", readable_pod()));
  EXPECT_EQ(pod.mapped, Store::far);
  EXPECT_EQ(pod.lane.read, 3'000'000'000U);
  EXPECT_EQ(pod.lane.read_first, 2 * kNanosecond);
  ASSERT_TRUE(pod.combine && pod.bsp_combine);
  EXPECT_EQ(pod.combine->read, 6'000'000'000U);
  EXPECT_EQ(pod.combine->copy, 5'000'000'000U);
  EXPECT_EQ(pod.combine->put, pod.lane.put);
  // bsp's own, then those of every combine, then those of its combine.
  EXPECT_EQ(pod.bsp_combine->put, 9'000'000'000U);
  EXPECT_EQ(pod.bsp_combine->read, 6'000'000'000U);
  EXPECT_EQ(pod.bsp_combine->copy, 4'000'000'000U);
}

TEST_F(PodTest, MappedMemoryThatDoesNotFit) {
  EXPECT_EQ(error_of(mapped_pod()), "23: lane has no read_gb_s, mapped memory needs it");
  const std::string pod = readable_pod();
  EXPECT_EQ(error_of(with(pod, "\"far\"", "\"mixed\"")),
            "8: mapped is mixed, expected near or far");
  EXPECT_EQ(error_of(with(pod, "\"jitter_ns\": 0", "\"jitter_ns\": 1")),
            "8: jitter_ns has no meaning with mapped");
  EXPECT_EQ(error_of(with(pod, "\"uplink_gb_s\": 0", "\"uplink_gb_s\": 1")),
            "10: tiers have rates (lane), mapped memory has no links");
  EXPECT_EQ(error_of(with(pod, "{\"copy_gb_s\": 4}", "{\"x\": 4}")),
            "9: bsp_combine.x is not a key of a pod");
}

TEST_F(PodTest, KeysOfMappedMemoryOnly) {
  EXPECT_EQ(error_of(with(kPod, "\"jitter_ns\": 1.5,", "\"jitter_ns\": 1.5, \"combine\": {},")),
            "8: combine has no meaning without mapped");
  EXPECT_EQ(error_of(with(kPod, "\"jitter_ns\": 1.5,", "\"jitter_ns\": 0, \"bsp_combine\": {},")),
            "8: bsp_combine has no meaning without mapped");
  EXPECT_EQ(error_of(with(kPod, "\"issue_ns\"", "\"share_gb_s\": 3, \"issue_ns\"")),
            "22: lane has read_gb_s, read_ns or share_gb_s, which have no meaning without mapped");
}

TEST_F(PodTest, SyntaxErrors) {
  const auto line_of = [&](const std::string& text) {
    const std::string error = error_of(text);
    EXPECT_NE(error.find("parse error"), std::string::npos) << error;
    return error.substr(0, error.find(':'));
  };
  EXPECT_EQ(line_of(with(kPod, "\"lanes\": 2,", "\"lanes\" 2,")), "4");
  EXPECT_EQ(line_of(with(kPod, ": 41,", ": 41 41,")), "28");
  EXPECT_EQ(line_of(with(kPod, "\"small\"", "\"small")), "2");
  EXPECT_EQ(line_of(with(kPod, "\"small\"", "\"sm\xff\"")), "2");
  EXPECT_EQ(line_of(kPod + "}"), "33");
  EXPECT_EQ(line_of(kPod.substr(0, kPod.find(": 41"))), "28");
  EXPECT_EQ(line_of(""), "1");
  EXPECT_EQ(line_of("// a pod\n{}"), "1");
}

TEST_F(PodTest, FilesThatCannotBeRead) {
  for (const std::string& path : {folder_.file("no.json"), folder_.file("")}) {
    try {
      (void)read_pod(path);
      ADD_FAILURE() << "read " << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string(error.what()), path + ": cannot be read");
    }
  }
}

TEST_F(PodTest, TheTierOfTwoRanksIsTheSmallestThatHasBoth) {
  const Pod pod = read_pod(folder_.put("pod.json", kPod));
  EXPECT_EQ(&pod.tier(0, 3), &pod.tiers[0]);
  EXPECT_EQ(&pod.tier(5, 4), &pod.tiers[0]);
  EXPECT_EQ(&pod.tier(3, 4), &pod.tiers[1]);
  EXPECT_EQ(&pod.tier(7, 0), &pod.tiers[1]);
}

// As a pod may be written in full.
const std::string kFull =
    with(with(with(with(kPod, "\"jitter_ns\": 1.5,",
                        "\"jitter_ns\": 1.5, \"protocol\": \"tff-512\", \"source\": \"a book\", "
                        "\"projection\": true, \"launch_ns\": 3000,"),
                   ": 500", ": 500, \"rate_gb_s\": 70"),
              "\"plan_gb_s\": 2,",
              "\"plan_gb_s\": 2, \"row_ns\": 700, \"combine_row_ns\": 300, "
              "\"receive_row_ns\": 90, \"in_flight\": 3, \"signal_ns\": 65,"),
         "65536\n  }",
         "65536\n  },\n  \"bsp\": { \"row_ns\": 900, \"barrier_ns\": 5000,\n"
         "    \"combine_launch_ns\": 7000 }");

TEST_F(PodTest, ReadsEveryKeyThatMayBeLeftOut) {
  const Pod pod = read_pod(folder_.put("pod.json", kFull));
  EXPECT_EQ(pod.protocol, Protocol::token_flag_512);
  EXPECT_EQ(pod.source, "a book");
  EXPECT_TRUE(pod.projection);
  EXPECT_EQ(pod.tiers[0].rate, 70'000'000'000U);
  EXPECT_EQ(pod.tiers[1].rate, 0U);
  EXPECT_EQ(pod.lane.launch, 3 * kMicrosecond);
  EXPECT_EQ(pod.lane.combine_launch, 3 * kMicrosecond);
  EXPECT_EQ(pod.lane.row, 700 * kNanosecond);
  EXPECT_EQ(pod.lane.combine_row, 300 * kNanosecond);
  EXPECT_EQ(pod.lane.receive_row, 90 * kNanosecond);
  EXPECT_EQ(pod.lane.in_flight, 3);
  EXPECT_EQ(pod.lane.flag(), 65 * kNanosecond);
  ASSERT_TRUE(pod.bsp.has_value());
  // What it does not say is as on the other paths.
  EXPECT_EQ(pod.bsp->row, 900 * kNanosecond);
  EXPECT_EQ(pod.bsp->barrier, 5 * kMicrosecond);
  EXPECT_EQ(pod.bsp->launch, 3 * kMicrosecond);
  EXPECT_EQ(pod.bsp->combine_launch, 7 * kMicrosecond);
  EXPECT_EQ(pod.bsp->combine_row, 300 * kNanosecond);
  EXPECT_EQ(pod.bsp->put, pod.lane.put);

  const Pod plain = read_pod(folder_.put("plain.json", kPod));
  EXPECT_EQ(plain.protocol, Protocol::automatic);
  EXPECT_FALSE(plain.projection);
  EXPECT_FALSE(plain.bsp.has_value());
  EXPECT_EQ(plain.lane.flag(), plain.lane.issue);
  EXPECT_EQ(plain.lane.row + plain.lane.receive_row + plain.lane.launch, 0U);
}

TEST_F(PodTest, WrongValuesOfKeysThatMayBeLeftOut) {
  EXPECT_EQ(error_of(with(kFull, ": 70", ": 101")),
            "13: tiers[0].rate_gb_s is 101, more than port_gb_s, 100");
  EXPECT_EQ(error_of(with(kFull, "tff-512", "tff-513")),
            "8: protocol is tff-513, expected one of put-with-signal, tff-16, tff-128, tff-512, "
            "dc, sp, fence");
  EXPECT_EQ(error_of(with(kFull, "true", "1")), "8: projection is 1, expected true or false");
  EXPECT_EQ(error_of(with(kFull, ": 3,", ": -3,")),
            "29: lane.in_flight is -3, expected 0 to 1048576");
  EXPECT_EQ(error_of(with(kFull, "\"row_ns\": 900", "\"jitter_ns\": 900")),
            "32: bsp.jitter_ns is not a key of a pod");
  EXPECT_EQ(error_of(with(kFull, ": 900", ": \"x\"")),
            "32: bsp.row_ns is \"x\", expected a number");
}

TEST_F(PodTest, PodsThatAreBuiltIn) {
  const std::vector<std::string> names = pod_names();
  ASSERT_NE(std::find(names.begin(), names.end(), "generic"), names.end());
  for (const std::string& name : names) {
    EXPECT_EQ(read_pod(name).name, name);
    EXPECT_GE(read_pod_variants(name).size(), 1U);
  }
  try {
    (void)read_pod("cm383");
    ADD_FAILURE() << "there is no such pod";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    const std::string what = error.what();
    EXPECT_EQ(what.find("'cm383' is not one of the pods that are built in: "), 0U) << what;
    EXPECT_NE(what.find("generic"), std::string::npos) << what;
  }
}

class PodVariantsTest : public PodTest {
 protected:
  static std::string variants(const std::string& list) {
    return with(kPod, "\"lane\": {", "\"variants\": " + list + ",\n  \"lane\": {");
  }
};

TEST_F(PodVariantsTest, ThePodAloneWhereNoneAreListed) {
  const auto all = read_pod_variants(folder_.put("pod.json", kPod));
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].name, "base");
  EXPECT_EQ(all[0].weight, 1);
  EXPECT_EQ(all[0].pod.lane.issue, 50 * kNanosecond);
}

TEST_F(PodVariantsTest, SetValues) {
  const std::string text = variants(
      R"([{"name": "a", "weight": 1, "set": {"lane.issue_ns": 77, "tiers.1.latency_ns": 9}},
          {"name": "b", "weight": 3, "set": {"lane.row_ns": 5, "protocol": "sp", "port_gb_s": 60}},
          {"name": "c", "weight": 4, "set": {}}])");
  const std::string path = folder_.put("pod.json", text);
  EXPECT_EQ(read_pod(path).lane.issue, 50 * kNanosecond);
  const auto all = read_pod_variants(path);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].name, "a");
  EXPECT_DOUBLE_EQ(all[0].weight, 0.125);
  EXPECT_EQ(all[0].pod.lane.issue, 77 * kNanosecond);
  EXPECT_EQ(all[0].pod.tiers[1].latency, 9 * kNanosecond);
  EXPECT_EQ(all[0].pod.tiers[0].latency, 500 * kNanosecond);
  EXPECT_DOUBLE_EQ(all[1].weight, 0.375);
  EXPECT_EQ(all[1].pod.lane.issue, 50 * kNanosecond);
  EXPECT_EQ(all[1].pod.lane.row, 5 * kNanosecond);
  EXPECT_EQ(all[1].pod.protocol, Protocol::sentinel);
  EXPECT_EQ(all[1].pod.port, 60'000'000'000U);
  EXPECT_EQ(all[2].pod.lane.issue, 50 * kNanosecond);
}

TEST_F(PodVariantsTest, AreReadWithThePod) {
  const auto error = [&](const std::string& list) { return error_of(variants(list)); };
  EXPECT_EQ(error("5"), "22: variants expected a list of variants");
  EXPECT_EQ(error("[]"), "22: variants expected a list of variants");
  EXPECT_EQ(error("[\n7]"), "23: variants[0] is 7, expected an object");
  EXPECT_EQ(error(R"([{"name": "a", "weight": 1}])"), "22: variants[0].set is missing");
  EXPECT_EQ(error(R"([{"name": "a", "weight": 0, "set": {}}])"),
            "22: variants[0].weight is 0, expected 1e-06 to 1000000");
  EXPECT_EQ(error(R"([{"name": "a", "weight": 1, "set": {}, "x": 1}])"),
            "22: variants[0].x is not a key of a variant");
  EXPECT_EQ(error("[{\"name\": \"a\", \"weight\": 1, \"set\": {}},\n"
                  "{\"name\": \"a\", \"weight\": 1, \"set\": {}}]"),
            "23: variants[1].name is there twice: a");
  const auto set = [&](const std::string& values) {
    return error("[{\"name\": \"a\", \"weight\": 1,\n \"set\": {" + values + "}}]");
  };
  EXPECT_EQ(set("\"lane.speed\": 1"),
            "23: variants[0].set makes no pod: lane.speed is not a key of a pod");
  EXPECT_EQ(set("\"lane.issue_ns\": -1"),
            "23: variants[0].set makes no pod: lane.issue_ns is -1, expected 0 to 1000000000");
  EXPECT_EQ(set("\n\"tiers.2.ranks\": 1"),
            "24: variants[0].set.tiers.2.ranks the file has no tiers.2");
  EXPECT_EQ(set("\"tiers.x.ranks\": 1"),
            "23: variants[0].set.tiers.x.ranks the file has no tiers.x");
  EXPECT_EQ(set("\"bsp.row_ns\": 1"), "23: variants[0].set.bsp.row_ns the file has no bsp");
  EXPECT_EQ(set("\"tiers\": 1"),
            "23: variants[0].set.tiers may only set a number, a text, true or false");
  EXPECT_EQ(set("\"name.x\": 1"), "23: variants[0].set.name.x is not a path to a key");
}

TEST(TimeOfTest, IsRoundedUpAndDoesNotOverflow) {
  EXPECT_EQ(time_of(1, 1'000'000'000'000), 1U);
  EXPECT_EQ(time_of(1, 3), 333'333'333'334U);
  EXPECT_EQ(time_of(1000, 1'000'000'000), 1000 * kNanosecond);
  EXPECT_EQ(time_of(std::uint64_t{1} << 40, 1'000'000'000), (std::uint64_t{1} << 40) * 1000);
  EXPECT_EQ(time_of(5, 0), 0U);
  EXPECT_EQ(time_of(0, 7), 0U);
}

}  // namespace
}  // namespace ubep::sim
