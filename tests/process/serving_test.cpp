// What serving asks for: experts that start before all rows are here and end before all outputs
// are, rows in the caller's tensor, tokens that take no part, ranks that only attend or only
// compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "support/cases.hpp"
#include "support/compare.hpp"
#include "support/experts.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {
namespace {

constexpr std::byte kUntouched{0x5a};

class ServingTest : public testing::TestWithParam<RankKind> {};

// Of one local expert, in an expert layout.
bool has_rows_of(const Received& got, const ExpectedReceived& want, int expert) {
  const auto e = static_cast<std::size_t>(expert);
  if (got.expert_counts[e] != want.expert_counts[e]) return false;
  for (std::int32_t i = 0; i < want.expert_counts[e]; ++i) {
    const std::int32_t row = got.expert_offsets[e] + i;
    const auto at = static_cast<std::size_t>(row) * want.row_bytes;
    if (std::memcmp(got.row(row), want.rows.data() + at, want.row_bytes) != 0) return false;
  }
  return true;
}

Status wait_for_expert(Communicator& comm, const Handle& handle, int expert, int lane = 0) {
  for (;;) {
    const Status status = comm.poll_expert(handle, expert);
    if (status.code != Code::not_ready) return status;
    if (comm.step(lane, 3) == 0) std::this_thread::yield();
  }
}

// An owner that nobody sends to waits for its peers all the same.
TEST_P(ServingTest, AWaitForAnExpertIsBounded) {
  const Problem problem = make_problem({.ranks = 2, .layout = Layout::expert_major});
  const Gate gate(2);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank, {.layout = Layout::expert_major, .by_expert = true});
    if (bootstrap.rank == 1) gate.arrive_and_wait();
    ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
    if (bootstrap.rank == 0) {
      const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
      const Status status = comm.wait_expert(worker.handle, 1, soon);
      EXPECT_EQ(status.code, Code::timeout);
      EXPECT_EQ(status.peer, 1) << status.message();
      gate.arrive_and_wait();
    }
    ASSERT_TRUE(comm.wait_expert(worker.handle, 1).ok());
    ASSERT_TRUE(comm.wait(worker.handle).ok());
    EXPECT_EQ(worker.received_difference(), "");
    ASSERT_TRUE(worker.combine(comm).ok());
  });
}

TEST_P(ServingTest, ExpertsStartAndEndOneByOne) {
  for (const Layout layout : {Layout::expert_major, Layout::expert_padded}) {
    Problem problem = make_problem(
        {.ranks = 3, .experts_per_rank = 5, .tokens = 17, .topk = 4, .layout = layout});
    if (layout == Layout::expert_padded) problem.expert_capacity = 3 * 17;
    run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      Worker worker(problem, bootstrap.rank,
                    {.layout = layout, .path = Path::pull, .by_expert = true});
      const ExpectedReceived expected = expected_received(problem, bootstrap.rank);
      for (int round = 0; round < 5; ++round) {
        ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
        const int experts = comm.num_local_experts();
        for (int e = experts - 1; e >= 0; --e) {
          ASSERT_TRUE(wait_for_expert(comm, worker.handle, e).ok());
          EXPECT_TRUE(has_rows_of(worker.handle.received(), expected, e)) << "expert " << e;
        }
        ASSERT_TRUE(comm.wait(worker.handle).ok());
        EXPECT_EQ(worker.received_difference(), "");
        CombineArgs args = worker.prepare_combine();
        args.by_expert = true;
        ASSERT_TRUE(comm.start_combine(worker.handle, args).ok());
        for (int e = 0; e < experts; ++e) {
          ASSERT_TRUE(comm.publish(worker.handle, e).ok());
          (void)comm.step();
        }
        ASSERT_TRUE(comm.wait(worker.handle).ok());
        EXPECT_EQ(worker.out_difference(), "");
      }
    });
  }
}

// A token whose experts are all published is summed although its owners have others left.
TEST_P(ServingTest, PublishedExpertsAreSummedBeforeTheRest) {
  Problem problem = make_problem(
      {.ranks = 2, .experts_per_rank = 2, .tokens = 1, .topk = 1, .layout = Layout::expert_major});
  for (RankInput& input : problem.ranks) input.topk_idx = {0};  // rank 0's first
  const SharedArray<int> done(1);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank, {.layout = Layout::expert_major});
    ASSERT_TRUE(worker.dispatch(comm).ok());
    CombineArgs args = worker.prepare_combine();
    std::fill_n(args.out.row(0), args.out.row_bytes(), kUntouched);
    args.by_expert = bootstrap.rank == 0;
    ASSERT_TRUE(comm.start_combine(worker.handle, args).ok());
    std::atomic_ref<int> flag(done[0]);
    if (bootstrap.rank == 0) {
      ASSERT_TRUE(comm.publish(worker.handle, 0).ok());
      while (flag.load() == 0) std::this_thread::yield();
      const Status status = comm.wait(
          worker.handle, std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
      EXPECT_EQ(status.code, Code::timeout);
      EXPECT_NE(status.message().find("not all published"), std::string::npos) << status.message();
      ASSERT_TRUE(comm.publish(worker.handle, 1).ok());
    } else {
      while (args.out.row(0)[0] == kUntouched) (void)comm.step();
      EXPECT_EQ(comm.poll(worker.handle).code, Code::not_ready);
      flag.store(1);
    }
    ASSERT_TRUE(comm.wait(worker.handle).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

TEST_P(ServingTest, GivingUpHalfPublishedOutputsIsAMismatchForPeers) {
  const Problem problem = make_problem({.ranks = 2, .topk = 4, .layout = Layout::expert_major});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank, {.layout = Layout::expert_major});
    ASSERT_TRUE(worker.dispatch(comm).ok());
    if (bootstrap.rank == 1) {
      EXPECT_EQ(worker.combine(comm).code, Code::mismatch);
      return;
    }
    CombineArgs args = worker.prepare_combine();
    args.by_expert = true;
    ASSERT_TRUE(comm.start_combine(worker.handle, args).ok());
    ASSERT_TRUE(comm.publish(worker.handle, 1).ok());
    comm.release(worker.handle);
  });
}

TEST_P(ServingTest, MisuseOfExpertCallsIsRefused) {
  const Problem problem = make_problem({.ranks = 1, .layout = Layout::expert_major});
  run_ranks(GetParam(), 1, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank, {.layout = Layout::expert_major});
    const auto text_of = [](const auto& call) -> std::string {
      try {
        (void)call();
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    ASSERT_TRUE(worker.dispatch(comm).ok());
    EXPECT_EQ(text_of([&] { return comm.poll_expert(worker.handle, 0); }),
              "poll_expert: the handle's latest operation is no dispatch with by_expert, or it was "
              "released");
    EXPECT_EQ(text_of([&] { return comm.publish(worker.handle, 0); }),
              "publish: the handle's latest operation is no combine with by_expert");
    CombineArgs args = worker.prepare_combine();
    args.by_expert = true;
    EXPECT_NE(text_of([&] { return comm.combine(worker.handle, args); }).find("start_combine"),
              std::string::npos);
    ASSERT_TRUE(comm.start_combine(worker.handle, args).ok());
    EXPECT_EQ(text_of([&] { return comm.publish(worker.handle, 2); }),
              "expert (local) is 2, expected 0..1");
    ASSERT_TRUE(comm.publish(worker.handle, 1).ok());
    EXPECT_EQ(worker.handle.received().num_rows, worker.handle.expert_output().num_rows);
    EXPECT_EQ(text_of([&] { return comm.publish(worker.handle, 1); }),
              "publish: expert 1 was published before");
    ASSERT_TRUE(comm.publish(worker.handle, 0).ok());
    ASSERT_TRUE(comm.wait(worker.handle).ok());
    EXPECT_EQ(worker.out_difference(), "");
    const DispatchOptions options{.by_expert = true};
    EXPECT_EQ(text_of([&] {
                return comm.dispatch(worker.x(), worker.routing(), options, worker.handle);
              }),
              "by_expert is set, expected only with expert layouts");
  });
}

// Several threads wait for experts and publish them while another moves rows.
TEST_P(ServingTest, ThreadsShareTheExperts) {
  const Problem problem = make_problem(
      {.ranks = 2, .experts_per_rank = 8, .tokens = 40, .topk = 6, .layout = Layout::expert_major});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank,
                  {.layout = Layout::expert_major, .path = Path::pull, .by_expert = true});
    const ExpectedReceived expected = expected_received(problem, bootstrap.rank);
    for (int round = 0; round < 10; ++round) {
      ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
      std::vector<std::thread> threads;
      std::atomic<int> failures = 0;
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&, t] {
          for (int e = t; e < 8; e += 2) {
            if (!wait_for_expert(comm, worker.handle, e, t + 1).ok()) ++failures;
            if (!has_rows_of(worker.handle.received(), expected, e)) ++failures;
          }
        });
      }
      ASSERT_TRUE(comm.wait(worker.handle).ok());
      for (std::thread& thread : threads) thread.join();
      CombineArgs args = worker.prepare_combine();
      args.by_expert = true;
      ASSERT_TRUE(comm.start_combine(worker.handle, args).ok());
      threads.clear();
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&, t] {
          for (int e = t; e < 8; e += 2) {
            (void)worker.handle.expert_output();
            if (!comm.publish(worker.handle, e).ok()) ++failures;
          }
        });
      }
      ASSERT_TRUE(comm.wait(worker.handle).ok());
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(failures, 0);
      EXPECT_EQ(worker.out_difference(), "");
    }
  });
}

// Too small a tensor loses nothing.
TEST_P(ServingTest, RowsThatDoNotFitAreInTheLibrarysMemory) {
  const Problem problem = make_problem({.ranks = 2, .tokens = 9, .layout = Layout::expert_major});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank, {.layout = Layout::expert_major});
    const std::int64_t rows = expected_received(problem, bootstrap.rank).num_rows;
    for (const std::int64_t room : {rows - 1, rows, rows + 5}) {
      std::vector<std::byte> memory(static_cast<std::size_t>(rows + 5) * 48, kUntouched);
      Input in = worker.x();
      in.out = {memory.data(), room, problem.hidden, problem.dtype};
      const Status status = comm.dispatch(in, worker.routing(), worker.options(), worker.handle);
      const bool fits = room >= rows;
      EXPECT_EQ(status.code, fits ? Code::ok : Code::no_capacity) << status.message();
      EXPECT_EQ(worker.handle.received().base == memory.data(), fits);
      EXPECT_EQ(
          compare_received(worker.handle.received(), expected_received(problem, bootstrap.rank),
                           problem, fits ? in.out : Rows{}),
          "");
      const auto beyond = fits ? static_cast<std::size_t>(rows) * 48 : std::size_t{0};
      EXPECT_TRUE(std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(beyond), memory.end(),
                              [](std::byte b) { return b == kUntouched; }));
      ASSERT_TRUE(worker.combine(comm).ok());
      EXPECT_EQ(worker.out_difference(), "");
    }
    Input in = worker.x();
    in.out = {const_cast<void*>(in.x.data), in.x.num_rows, problem.hidden, problem.dtype};
    EXPECT_THROW((void)comm.dispatch(in, worker.routing(), worker.options(), worker.handle), Error);
  });
}

// Rows so many that the library stores its own past the caches, which works on whole lines only.
TEST_P(ServingTest, ManyRowsInTheCallersTensorTouchNothingElse) {
  constexpr int kHidden = 7164;  // no multiple of a line, nor of 16 bytes
  constexpr std::int64_t kGap = 40;
  for (const bool contiguous : {false, true}) {
    ProblemShape shape{.ranks = 2, .experts_per_rank = 1, .tokens = 330, .hidden = kHidden};
    shape.layout = contiguous ? Layout::rank_major : Layout::expert_major;
    const Problem problem = make_problem(shape);
    run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      Worker worker(problem, bootstrap.rank);
      const ExpectedReceived want = expected_received(problem, bootstrap.rank);
      const std::int64_t stride = 2 * kHidden + kGap;
      for (const Path path : {Path::pull, Path::push}) {
        std::vector<std::byte> memory(static_cast<std::size_t>(want.num_rows * stride) + 2,
                                      kUntouched);
        Input in = worker.x();
        in.out = {memory.data() + 2, want.num_rows, kHidden, DType::bf16, stride};
        const DispatchOptions options{
            .layout = shape.layout, .path = path, .contiguous = contiguous};
        const Status status = comm.dispatch(in, worker.routing(), options, worker.handle);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(compare_received(worker.handle.received(), want, problem, in.out), "");
        for (std::int64_t i = 0; i < want.num_rows; ++i) {
          const std::byte* gap = in.out.row(i) + 2 * kHidden;
          ASSERT_TRUE(std::all_of(gap, gap + kGap, [](std::byte b) { return b == kUntouched; }))
              << "behind row " << i;
        }
        comm.release(worker.handle);
      }
    });
  }
}

// Ids of tokens that are not active may be anything.
TEST_P(ServingTest, InactiveTokensHaveAnyIds) {
  const Problem problem = make_problem({.ranks = 2, .tokens = 3});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    const RankInput& input = problem.ranks[static_cast<std::size_t>(bootstrap.rank)];
    std::vector<std::int32_t> ids = input.topk_idx;
    ids[2] = 99;
    ids[3] = -7;
    Routing routing{ids, input.topk_weights, problem.topk};
    EXPECT_THROW((void)comm.dispatch(worker.x(), routing, {}, worker.handle), Error);
    const std::vector<std::uint8_t> active = {1, 0, 1};
    routing.active = active;
    ASSERT_TRUE(comm.dispatch(worker.x(), routing, {}, worker.handle).ok());
    Problem seen = problem;
    for (RankInput& each : seen.ranks) each.topk_idx[2] = each.topk_idx[3] = -1;
    EXPECT_EQ(
        compare_received(worker.handle.received(), expected_received(seen, bootstrap.rank), seen),
        "");
    comm.release(worker.handle);
  });
}

// Attention on some ranks, experts on others; the shared expert has a rank of its own, and every
// token chooses it. Idle ranks take part with no tokens.
TEST_P(ServingTest, RanksThatOnlyAttendOrOnlyCompute) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
    for (const Path path : {Path::automatic, Path::pull, Path::push}) {
      Problem problem = make_problem({.ranks = 5, .tokens = 11, .topk = 3, .layout = layout});
      problem.num_experts = 7;
      problem.expert_rank = {2, 3, 2, 3, 3, 2, 4};  // 0 and 1 attend; expert 6 is shared, on 4
      for (std::size_t rank = 0; rank < 5; ++rank) {
        RankInput& input = problem.ranks[rank];
        if (rank >= 2) {
          input = {};
          continue;
        }
        for (std::int64_t t = 0; t < input.tokens; ++t) {
          const auto at = static_cast<std::size_t>(t * 3);
          input.topk_idx[at] = static_cast<std::int32_t>((t + static_cast<int>(rank)) % 6);
          input.topk_idx[at + 1] = t % 4 == 0 ? -1 : static_cast<std::int32_t>((t * 5 + 2) % 6);
          input.topk_idx[at + 2] = 6;
          input.topk_weights[at + 2] = 1.0F;
        }
      }
      CommunicatorOptions options = options_for(problem);
      options.expert_capacity = layout == Layout::expert_padded ? 2 * 11 * 2 : 0;
      problem.expert_capacity = options.expert_capacity;
      run_ranks(GetParam(), 5, [&](const Bootstrap& bootstrap) {
        Communicator comm = Communicator::create(bootstrap, options);
        Worker worker(problem, bootstrap.rank, {.layout = layout, .path = path});
        for (int round = 0; round < 4; ++round) EXPECT_EQ(worker.round(comm), "");
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ServingTest,
                         testing::Values(RankKind::threads, RankKind::processes), KindName());

}  // namespace
}  // namespace ubep::test
