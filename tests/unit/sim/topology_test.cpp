#include "sim/topology.hpp"

#include <gtest/gtest.h>

#include "plan/schedule.hpp"
#include "tests/unit/sim/pods.hpp"
#include "tests/unit/tools/test_support.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

class TopologyTest : public testing::Test {
 protected:
  Distances read(const std::string& text) { return read_topology(folder_.put("t.json", text)); }
  // What read_topology() says about the text, without the name of the file.
  std::string error_of(const std::string& text) {
    const std::string path = folder_.put("t.json", text);
    try {
      (void)read_topology(path);
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.substr(0, path.size() + 1), path + ":");
      return what.substr(std::min(path.size() + 1, what.size()));
    }
    return "no error";
  }

  tools::TempFolder folder_;
};

std::vector<std::uint16_t> row(const Distances& distances, int rank) {
  const auto from = distances.from(rank);
  return {from.begin(), from.end()};
}

TEST_F(TopologyTest, Tiers) {
  const Distances far =
      read(R"({"ranks": 6, "tiers": [{"name": "node", "ranks": 2}, {"ranks": 8}]})");
  EXPECT_EQ(far.tiers, 3);
  EXPECT_EQ(row(far, 3), (std::vector<std::uint16_t>{2, 2, 1, 0, 2, 2}));
}

TEST_F(TopologyTest, Latencies) {
  const std::string rows = R"("latency_ns": [[0, 60, 250], [60, 0, 250.5], [250, 260, 0]])";
  EXPECT_EQ(row(read("{" + rows + "}"), 1), (std::vector<std::uint16_t>{1, 0, 2}));
  EXPECT_EQ(row(read("{" + rows + ", \"ratio\": 5}"), 1), (std::vector<std::uint16_t>{1, 0, 1}));
}

// A schedule needs no more than the file of a pod.
TEST_F(TopologyTest, AnyPod) {
  const Distances far = read_topology(generic_pod());
  EXPECT_EQ(far.ranks, 256);
  EXPECT_EQ(far.tiers, 3);
  Destinations to;
  make_destinations(ExpertMap(block_map(512, 256), 256), far.from(9),
                    {.self = 9, .by_expert = true}, to);
  Schedule schedule;
  make_order(to, {.lanes = 8}, schedule);
  EXPECT_EQ(schedule.order.size(), 512U);
  EXPECT_EQ(schedule.order[0], 18U);  // the own ones are nearest
}

TEST_F(TopologyTest, Errors) {
  EXPECT_EQ(error_of("{\n\"ranks\": 4}"), "1: tiers is missing");
  EXPECT_EQ(error_of("{\"ranks\": 4,\n\"tiers\": []}"), "2: tiers expected a list of tiers");
  EXPECT_EQ(error_of("{\"ranks\": 6,\n\"tiers\": [{\"ranks\": 2},\n{\"ranks\": 3}]}"),
            "3: tiers[1].ranks is 3, expected a multiple of 2, the tier before");
  EXPECT_EQ(error_of("{\"ranks\": 6,\n\"tiers\": [{\"ranks\": 2}]}"),
            "2: tiers end with 2 ranks, expected 6");
  EXPECT_EQ(error_of("{\"ranks\": 6,\n\"tiers\": [{\"ranks\": 6, \"uplink\": 1}]}"),
            "2: tiers[0].uplink is not a key of a topology");
  EXPECT_EQ(error_of("{\"ranks\": 6,\n\"lane\": 1}"), "1: name is missing");  // a pod, then
  EXPECT_EQ(error_of("{\n\"latency_ns\": 7}"), "2: latency_ns expected a list of 1 to 1024 rows");
  EXPECT_EQ(error_of("{\"latency_ns\": [[0, 1],\n[1]]}"),
            "2: latency_ns[1] is a list of 1, expected a list of 2 numbers");
  EXPECT_EQ(error_of("{\"latency_ns\": [[0, 1],\n7]}"),
            "2: latency_ns[1] is 7, expected a list of 2 numbers");
  EXPECT_EQ(error_of("{\"latency_ns\": [[0, 1],\n[0, 0]]}"),
            "2: latency_ns[1] has 0 for rank 0, expected a number above 0, at most 1e9");
  EXPECT_EQ(error_of("{\"latency_ns\": [[0, \"x\"],\n[0, 0]]}"),
            "1: latency_ns[0] has \"x\" for rank 1, expected a number above 0, at most 1e9");
  EXPECT_EQ(error_of("{\"latency_ns\": [[0]],\n\"ratio\": 1}"),
            "2: ratio is 1, expected 1.05 to 1000000");
  EXPECT_EQ(error_of("{\"latency_ns\": [[0]],\n\"tiers\": 1}"),
            "2: tiers is not a key of a topology");
}

}  // namespace
}  // namespace ubep::sim
