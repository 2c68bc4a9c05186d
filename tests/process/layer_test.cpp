// Layers of more tokens than the communicator has room for.
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/cases.hpp"
#include "support/compare.hpp"
#include "support/experts.hpp"
#include "support/ranks.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {
namespace {

constexpr int kMaxTokens = 3;

struct LayerCase {
  int ranks;
  Layout layout;
  Path path;
  Quant quant = Quant::none;
};

Problem make_layer_problem(const LayerCase& c, std::uint64_t seed) {
  Random random(seed);
  Problem problem;
  problem.num_experts = 5;
  problem.dtype = DType::bf16;
  problem.hidden = 40;
  problem.topk = 3;
  problem.layout = c.layout;
  problem.quant = c.quant;
  problem.function = ExpertFunction::scaled;
  problem.ranks.resize(static_cast<std::size_t>(c.ranks));
  fill_inputs(problem, 5 * kMaxTokens + 1, random);
  return problem;
}

CommunicatorOptions layer_options() {
  CommunicatorOptions options;
  options.num_experts = 5;
  options.max_tokens = kMaxTokens;
  options.max_hidden = 40;
  options.max_topk = 3;
  options.expert_capacity = 3 * 4 * kMaxTokens;
  options.timeout = std::chrono::seconds(20);
  return options;
}

class LayerTest : public testing::TestWithParam<RankKind> {};

void run_problem(Communicator& comm, const Problem& problem, const LayerCase& c, Handle& handle) {
  const RankInput& in = problem.ranks[static_cast<std::size_t>(comm.rank())];
  std::vector<std::byte> bytes(in.x.size(), std::byte{0xff});
  const Rows out{bytes.data(), in.tokens, problem.hidden, problem.dtype};
  int rounds = 0;
  const Layer layer{.experts =
                        [&](Handle& h) {
                          ++rounds;
                          run_experts(h.received(), problem, comm.rank(), Weighting::kernel,
                                      h.expert_output());
                        },
                    .out = out};
  const Status status =
      comm.run_layer({ConstRows{in.x.data(), in.tokens, problem.hidden, problem.dtype}},
                     {in.topk_idx, in.topk_weights, problem.topk},
                     {.layout = c.layout, .path = c.path, .quant = c.quant}, layer, handle);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(compare_out(out, expected_out(problem, comm.rank())), "");
  std::int64_t most = 0;
  for (const RankInput& input : problem.ranks) most = std::max(most, input.tokens);
  EXPECT_EQ(rounds, std::max<std::int64_t>(1, (most + kMaxTokens - 1) / kMaxTokens));
  EXPECT_EQ(std::ssize(handle.valid_tokens()), in.tokens);
  for (const std::uint8_t valid : handle.valid_tokens()) EXPECT_EQ(valid, 1);
  EXPECT_FALSE(handle.holds_lease());
}

TEST_P(LayerTest, EveryTokenIsSummedInAsManyRoundsAsItTakes) {
  const std::vector<LayerCase> cases = {{1, Layout::rank_major, Path::read},
                                        {2, Layout::rank_major, Path::pull},
                                        {3, Layout::expert_major, Path::push},
                                        {4, Layout::expert_padded, Path::automatic},
                                        {3, Layout::expert_major, Path::automatic, Quant::fp8}};
  for (const LayerCase& c : cases) {
    run_ranks(GetParam(), c.ranks, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, layer_options());
      Handle handle;
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        run_problem(comm, make_layer_problem(c, seed), c, handle);
        // A dispatch alone in between, with the same handle.
        std::vector<std::int32_t> none;
        ASSERT_TRUE(comm.dispatch({nullptr, 0, 40, DType::bf16}, {none, {}, 1}, {}, handle).ok());
        ASSERT_TRUE(comm.combine(handle, {.out = {nullptr, 0, 40, DType::bf16}}).ok());
      }
    });
  }
}

TEST_P(LayerTest, ARankThatDispatchesInsteadIsNamed) {
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, layer_options());
    const Problem problem = make_layer_problem({2, Layout::rank_major, Path::pull}, 3);
    Handle handle;
    const std::vector<std::int32_t> idx = {0};
    const std::vector<float> weights = {1};
    std::vector<std::byte> x(80);
    const Input in{ConstRows{x.data(), 1, 40, DType::bf16}};
    const Routing routing{idx, weights, 1};
    Status status;
    if (bootstrap.rank == 0) {
      status = comm.run_layer(in, routing, {},
                              {.experts = [](Handle&) {}, .out = {x.data(), 1, 40, DType::bf16}},
                              handle);
    } else {
      status = comm.dispatch(in, routing, {}, handle);
    }
    EXPECT_EQ(status.code, Code::mismatch) << status.message();
    EXPECT_NE(status.message().find("round"), std::string::npos) << status.message();
  });
}

// The deadline passes while a peer has not begun; the same call goes on, and experts run once a
// round.
TEST_P(LayerTest, ATimeoutIsGoneOnFrom) {
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = layer_options();
    options.timeout = std::chrono::milliseconds(bootstrap.rank == 0 ? 20 : 20'000);
    Communicator comm = Communicator::create(bootstrap, options);
    const LayerCase c{2, Layout::expert_major, Path::pull};
    const Problem problem = make_layer_problem(c, 4);
    const RankInput& in = problem.ranks[static_cast<std::size_t>(bootstrap.rank)];
    std::vector<std::byte> bytes(in.x.size());
    const Rows out{bytes.data(), in.tokens, problem.hidden, problem.dtype};
    Handle handle;
    int rounds = 0;
    const Layer layer{.experts =
                          [&](Handle& h) {
                            ++rounds;
                            if (bootstrap.rank == 1) {
                              std::this_thread::sleep_for(std::chrono::milliseconds(60));
                            }
                            run_experts(h.received(), problem, bootstrap.rank, Weighting::kernel,
                                        h.expert_output());
                          },
                      .out = out};
    Status status;
    int timeouts = -1;
    do {
      status = comm.run_layer({ConstRows{in.x.data(), in.tokens, problem.hidden, problem.dtype}},
                              {in.topk_idx, in.topk_weights, problem.topk},
                              {.layout = c.layout, .path = c.path}, layer, handle);
      ++timeouts;
    } while (status.code == Code::timeout);
    ASSERT_TRUE(status.ok()) << status.message();
    if (bootstrap.rank == 0) {
      EXPECT_GT(timeouts, 0);
    }
    EXPECT_EQ(compare_out(out, expected_out(problem, bootstrap.rank)), "");
    std::int64_t most = 0;
    for (const RankInput& input : problem.ranks) most = std::max(most, input.tokens);
    EXPECT_EQ(rounds, std::max<std::int64_t>(1, (most + kMaxTokens - 1) / kMaxTokens));
  });
}

// A layer of one rank in three rounds: experts double. Fails in the round that it is told to.
class Alone {
 public:
  explicit Alone(const Bootstrap& bootstrap)
      : comm(Communicator::create(bootstrap, layer_options())) {}

  Status run(std::vector<float>& x, std::vector<float>& out, int failing_round = 0) {
    calls = 0;
    const auto experts = [&](Handle& h) {
      if (++calls == failing_round) throw std::runtime_error("no");
      const Received& received = h.received();
      for (std::int64_t i = 0; i < received.num_rows; ++i) {
        float value = 0;
        std::memcpy(&value, received.row(i), sizeof(value));
        value *= 2;
        std::memcpy(h.expert_output().row(i), &value, sizeof(value));
      }
    };
    const auto tokens = static_cast<std::int64_t>(x.size());
    const std::vector<float> weights(x.size(), 1.0F);
    return comm.run_layer({ConstRows{x.data(), tokens, 1, DType::fp32}}, {idx, weights, 1},
                          {.layout = Layout::expert_major},
                          {experts, {out.data(), tokens, 1, DType::fp32}}, handle);
  }

  Communicator comm;
  Handle handle;
  std::vector<std::int32_t> idx = {0, 1, 2, 3, 4, 0, 1, 2};  // three rounds
  int calls = 0;
};

TEST_P(LayerTest, WhatAnExceptionLeavesIsGoneOnFromOrGivenUp) {
  run_ranks(GetParam(), 1, [&](const Bootstrap& bootstrap) {
    Alone alone(bootstrap);
    std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
    std::vector<float> out(8, -1);
    const std::vector<float> doubled = {2, 4, 6, 8, 10, 12, 14, 16};
    EXPECT_THROW((void)alone.run(x, out, 2), std::runtime_error);
    std::vector<float> other = x;
    EXPECT_THROW((void)alone.run(other, out), Error);  // of another x
    EXPECT_TRUE(alone.run(x, out).ok());
    EXPECT_EQ(alone.calls, 2);
    EXPECT_EQ(out, doubled);
    EXPECT_THROW((void)alone.run(x, out, 2), std::runtime_error);
    alone.comm.release(alone.handle);
    std::fill(out.begin(), out.end(), -1.0F);
    EXPECT_TRUE(alone.run(other, out).ok());
    EXPECT_EQ(alone.calls, 3);
    EXPECT_EQ(out, doubled);
    EXPECT_EQ(alone.handle.valid_tokens().size(), 8U);
  });
}

TEST_P(LayerTest, WhatIsRefusedIsRefusedBeforeAnythingStarts) {
  run_ranks(GetParam(), 1, [&](const Bootstrap& bootstrap) {
    Alone alone(bootstrap);
    std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
    std::vector<float> out(8, -1);
    alone.idx[6] = 99;
    try {
      (void)alone.run(x, out);
      ADD_FAILURE() << "did not throw";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("topk_idx[6][0] is 99"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(alone.calls, 0);
    alone.idx[6] = 1;
    const std::vector<float> weights = {1};
    ASSERT_TRUE(alone.comm
                    .dispatch({x.data(), 1, 1, DType::fp32},
                              {std::span(alone.idx).first(1), weights, 1}, {}, alone.handle)
                    .ok());
    EXPECT_THROW((void)alone.run(x, out), Error);  // the lease of another operation
    alone.comm.release(alone.handle);
    EXPECT_TRUE(alone.run(x, out).ok());
    EXPECT_EQ(alone.calls, 3);
  });
}

TEST_P(LayerTest, WithoutRoomForAnyTokenThereIsNoCapacity) {
  run_ranks(GetParam(), 1, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = layer_options();
    options.max_tokens = 0;
    Communicator comm = Communicator::create(bootstrap, options);
    Handle handle;
    const std::vector<std::int32_t> idx = {0};
    const std::vector<float> weights = {1};
    std::vector<std::byte> x(80);
    const Layer layer{.experts = [](Handle&) {}, .out = {x.data(), 1, 40, DType::bf16}};
    const Status status = comm.run_layer({ConstRows{x.data(), 1, 40, DType::bf16}},
                                         {idx, weights, 1}, {}, layer, handle);
    EXPECT_EQ(status.code, Code::no_capacity);
    Layer wrong = layer;
    wrong.out.num_rows = 2;
    EXPECT_THROW((void)comm.run_layer({ConstRows{x.data(), 1, 40, DType::bf16}}, {idx, weights, 1},
                                      {}, wrong, handle),
                 Error);
    wrong = layer;
    wrong.experts = nullptr;
    EXPECT_THROW((void)comm.run_layer({ConstRows{x.data(), 1, 40, DType::bf16}}, {idx, weights, 1},
                                      {}, wrong, handle),
                 Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LayerTest, testing::Values(RankKind::threads, RankKind::processes),
                         [](const auto& kind) {
                           return kind.param == RankKind::threads ? "threads" : "processes";
                         });

}  // namespace
}  // namespace ubep::test
