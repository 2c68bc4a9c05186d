// Rows that are pushed: what a source owes its peers when it is late, leaves early or dies, and
// what an owner does with more rows than it has room for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include "support/compare.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

constexpr DispatchOptions kPush{.path = Path::push};

const auto kProtocols = testing::Range(1, static_cast<int>(Protocol::fence) + 1);

CommunicatorOptions options_for(const Problem& problem, int protocol) {
  CommunicatorOptions options = options_for(problem);
  options.protocol = static_cast<Protocol>(protocol);
  return options;
}

std::string identifier(int protocol) {
  std::string text = name(static_cast<Protocol>(protocol));
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

class PushTest : public testing::TestWithParam<std::tuple<RankKind, int>> {
 protected:
  static RankKind kind() { return std::get<0>(GetParam()); }
  static CommunicatorOptions options_of(const Problem& problem) {
    return options_for(problem, std::get<1>(GetParam()));
  }
};

TEST_P(PushTest, ATimeoutNamesTheRowsThatAreMissing) {
  const Problem problem = make_problem({.ranks = 3, .layout = Layout::expert_major});
  const Gate started(3);
  const Gate timed_out(3);
  run_ranks(kind(), 3, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_of(problem);
    options.timeout = std::chrono::milliseconds(200);
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank, kPush);
    ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
    started.arrive_and_wait();
    if (bootstrap.rank != 2) {  // rank 2 has announced its rows, and does not step
      const Status status = comm.wait(worker.handle);
      EXPECT_EQ(status.code, Code::timeout);
      EXPECT_EQ(status.peer, 2);
      EXPECT_EQ(status.word, Word::sent) << status.message();
    }
    timed_out.arrive_and_wait();
    Status status = comm.wait(worker.handle);
    for (int i = 0; i < 100 && status.code == Code::timeout; ++i) status = comm.wait(worker.handle);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(worker.received_difference(), "");
    for (status = worker.start_combine(comm); status.code == Code::not_ready;) (void)comm.step();
    status = comm.wait(worker.handle);
    for (int i = 0; i < 100 && status.code == Code::timeout; ++i) status = comm.wait(worker.handle);
    EXPECT_EQ(worker.out_difference(), "");
  });
}

// Whoever gives its handle back before its rows are pushed leaves them in its slot.
TEST_P(PushTest, ReleasedBeforeTheRowsWereSent) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    const Problem problem = make_problem({.ranks = 3, .layout = layout});
    const Gate released(3);
    run_ranks(kind(), 3, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_of(problem));
      Worker worker(problem, bootstrap.rank, kPush);
      if (bootstrap.rank == 1) {
        ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
        comm.release(worker.handle);
        released.arrive_and_wait();
        return;
      }
      const Status status = worker.dispatch(comm);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(worker.received_difference(), "");
      released.arrive_and_wait();
      comm.release(worker.handle);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PushTest,
                         testing::Combine(testing::Values(RankKind::threads, RankKind::processes),
                                          kProtocols),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) + "_" +
                                  identifier(std::get<1>(test.param));
                         });

// Announced rows that never come keep their place and are zero.
class PushDeathTest : public testing::TestWithParam<int> {};

TEST_P(PushDeathTest, DeadBeforeTheRowsWereSent) {
  const Problem problem = make_problem({.ranks = 3, .layout = Layout::expert_major});
  const Gate announced(3);
  const std::vector<int> statuses =
      rank_statuses(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
        Communicator comm = Communicator::create(bootstrap, options_for(problem, GetParam()));
        Worker worker(problem, bootstrap.rank, kPush);
        for (int i = 0; i < 2; ++i) ASSERT_EQ(worker.round(comm), "");  // rows lie in both slots
        ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
        announced.arrive_and_wait();
        if (bootstrap.rank == 1) _exit(3);
        const Status status = comm.wait(worker.handle);
        EXPECT_EQ(status.code, Code::peer_lost) << status.message();
        EXPECT_EQ(worker.handle.received().sources, 0b101U);
        Problem zeroed = problem;
        zeroed.zeroed = 0b010;
        EXPECT_EQ(compare_received(worker.handle.received(),
                                   expected_received(zeroed, bootstrap.rank), zeroed),
                  "");
        EXPECT_TRUE(worker.combine(comm).ok());
        EXPECT_EQ(worker.out_difference(0b010), "");
        EXPECT_TRUE(worker.dispatch(comm).ok());
        EXPECT_EQ(worker.received_difference(), "");
        EXPECT_TRUE(worker.combine(comm).ok());
        EXPECT_EQ(worker.out_difference(0b010), "");
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 3, 0}));
}

INSTANTIATE_TEST_SUITE_P(Protocols, PushDeathTest, kProtocols,
                         [](const auto& test) { return identifier(test.param); });

class CapacityTest : public testing::TestWithParam<std::tuple<Path, Reduction>> {
 protected:
  static void overflow(Communicator& comm, Worker& worker, int rank, int capacity) {
    const Status status = worker.dispatch(comm);
    const Received& received = worker.handle.received();
    if (rank == 1) {
      EXPECT_EQ(status.code, Code::no_capacity) << status.message();
      EXPECT_EQ(status.seen, 16U);
      EXPECT_EQ(status.expected, 5U);
      EXPECT_EQ(received.overflow, 16U);
      EXPECT_EQ(received.num_rows, 2 * capacity);
      EXPECT_EQ(received.expert_counts[1], capacity);
    } else {
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(worker.received_difference(), "");
    }
    ASSERT_TRUE(worker.combine(comm).ok());
    // Rows of rank 0 come first: five of its tokens have a place, nobody else's.
    const auto valid = worker.handle.valid_tokens();
    const auto count = std::count(valid.begin(), valid.end(), std::uint8_t{1});
    EXPECT_EQ(count, rank == 0 ? capacity : 0);
    EXPECT_EQ(worker.out_difference(0b10), "");
  }
};

// Rank 1 has room for fewer rows than its fullest expert is sent.
TEST_P(CapacityTest, RowsBeyondItAreReportedOnBothSides) {
  Problem problem = make_problem({.ranks = 2, .experts_per_rank = 2, .tokens = 8});
  problem.layout = Layout::expert_padded;
  problem.reduction = std::get<Reduction>(GetParam());
  constexpr int kCapacity = 5;
  problem.expert_capacity = 16;
  for (RankInput& input : problem.ranks) {
    for (std::size_t i = 0; i < input.topk_idx.size(); i += 2) {
      input.topk_idx[i] = static_cast<std::int32_t>(i / 2) % 2;  // experts 0, 1 of rank 0
      input.topk_idx[i + 1] = 3;                                 // the second one of rank 1
    }
  }
  const Path path = std::get<Path>(GetParam());
  for (int protocol = 1; protocol <= static_cast<int>(Protocol::fence); ++protocol) {
    SCOPED_TRACE(identifier(protocol));
    run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem, protocol));
      Problem mine = problem;
      if (bootstrap.rank == 1) mine.expert_capacity = kCapacity;
      Worker worker(mine, bootstrap.rank, {.path = path});
      // Each slot twice: rows without a place are taken out of the windows, too.
      for (int round = 0; round < 4; ++round) overflow(comm, worker, bootstrap.rank, kCapacity);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CapacityTest,
                         testing::Combine(testing::Values(Path::pull, Path::push),
                                          testing::Values(Reduction::exact, Reduction::per_rank)),
                         [](const auto& instance) {
                           const bool exact =
                               std::get<Reduction>(instance.param) == Reduction::exact;
                           return std::string(name(std::get<Path>(instance.param))) +
                                  (exact ? "_exact" : "_per_rank");
                         });

// Of a token whose second row at the rank has no place, the first one counts; `per_rank` too.
TEST(PartialSumTest, EndsAtTheLastRowThatHasAPlace) {
  for (const Reduction reduction : {Reduction::exact, Reduction::per_rank}) {
    run_ranks(RankKind::threads, 1, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, {.num_experts = 2,
                                                           .max_tokens = 2,
                                                           .max_hidden = 1,
                                                           .max_dtype = DType::fp32,
                                                           .max_topk = 2,
                                                           .expert_capacity = 1});
      const std::vector<float> x{3, 5};
      const std::vector<std::int32_t> topk_idx{0, -1, 1, 0};  // expert 0 is full with token 0
      const std::vector<float> weights{1, 0, 1, 1};
      Handle handle;
      const Status status =
          comm.dispatch({x.data(), 2, 1, DType::fp32}, {topk_idx, weights, 2},
                        {.layout = Layout::expert_padded, .reduction = reduction}, handle);
      EXPECT_EQ(status.code, Code::no_capacity) << status.message();
      const Received& received = handle.received();
      for (int e = 0; e < 2; ++e) {
        std::memcpy(handle.expert_output().row(e), received.row(e), sizeof(float));
      }
      std::vector<float> out(2);
      ASSERT_TRUE(comm.combine(handle, {.out = {out.data(), 2, 1, DType::fp32}}).ok());
      EXPECT_EQ(out, (std::vector<float>{3, 5}));
      EXPECT_EQ(handle.valid_tokens()[0], 1);
      EXPECT_EQ(handle.valid_tokens()[1], 0);
    });
  }
}

}  // namespace
}  // namespace ubep::test
