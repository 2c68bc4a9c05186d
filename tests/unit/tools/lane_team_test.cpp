#include "tools/ubep/lane_team.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tools/ubep/lane_clock.hpp"

namespace ubep::tools {
namespace {

Communicator alone(const char* what) {
  CommunicatorOptions options;
  options.num_experts = 4;
  options.max_tokens = 64;
  options.max_hidden = 32;
  options.max_dtype = DType::fp32;
  options.max_topk = 1;
  return Communicator::create(
      {.rank = 0, .size = 1, .job = "lane-team-" + std::to_string(getpid()) + what}, options);
}

// Tokens whose experts return them as they are.
class Layer {
 public:
  Layer() : x_(64 * 32), out_(x_.size()), experts_(64), weights_(64, 1.0F) {
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(i);
    for (std::size_t t = 0; t < experts_.size(); ++t) experts_[t] = static_cast<int>(t % 4);
  }

  // Whether all tokens came back.
  bool run(Communicator& comm, LaneTeam& team) {
    Handle handle;
    EXPECT_TRUE(comm.start_dispatch({x_.data(), 64, 32, DType::fp32}, {experts_, weights_, 1},
                                    {.layout = Layout::expert_major, .path = Path::push}, handle)
                    .ok());
    EXPECT_TRUE(team.wait(handle).ok());
    const Received& received = handle.received();
    for (std::int64_t i = 0; i < received.num_rows; ++i) {
      std::memcpy(handle.expert_output().row(i), received.row(i), 32 * sizeof(float));
    }
    std::fill(out_.begin(), out_.end(), -1.0F);
    EXPECT_TRUE(comm.start_combine(handle, {.out = {out_.data(), 64, 32, DType::fp32}}).ok());
    EXPECT_TRUE(team.wait(handle).ok());
    return out_ == x_;
  }

 private:
  std::vector<float> x_;
  std::vector<float> out_;
  std::vector<std::int32_t> experts_;
  std::vector<float> weights_;
};

TEST(LaneTeamTest, GoesFromCommunicatorToCommunicator) {
  Communicator first = alone("first");
  Communicator second = alone("second");
  LaneTeam team(6);
  Layer layer;
  for (int i = 0; i < 30; ++i) {
    Communicator& comm = i % 2 == 0 ? first : second;
    const int lanes = 1 + i % 6;
    comm.set_lanes(lanes);
    team.use(comm, lanes);
    ASSERT_TRUE(layer.run(comm, team)) << i;
  }
}

TEST(LaneTeamTest, IsTracedByLane) {
  Communicator comm = alone("traced");
  LaneClock clock(4);
  LaneTeam team(4);
  Layer layer;
  comm.set_lanes(4);
  comm.set_tracer(&clock);
  team.use(comm, 4);
  for (int i = 0; i < 20; ++i) {
    clock.begin(4);
    ASSERT_TRUE(layer.run(comm, team)) << i;
    const Breakdown us = clock.end();
    EXPECT_GT(us.total(), 0);
  }
  comm.set_tracer(nullptr);
}

TEST(LaneTeamTest, MayHaveNothingToDo) { LaneTeam team(3); }

}  // namespace
}  // namespace ubep::tools
