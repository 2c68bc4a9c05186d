// Ranks that start different operations hear what differs, not a timeout.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

// A status as ranks hand it to the test.
struct Outcome {
  Code code = Code::ok;
  int peer = -1;
  std::uint64_t expected = 0;
  std::uint64_t seen = 0;
  char what[32] = {};
  char message[300] = {};
};

void note(const Status& status, Outcome& outcome) {
  outcome.code = status.code;
  outcome.peer = status.peer;
  outcome.expected = status.expected;
  outcome.seen = status.seen;
  std::snprintf(outcome.what, sizeof outcome.what, "%s", status.what);
  std::snprintf(outcome.message, sizeof outcome.message, "%s", status.message().c_str());
}

// Steps until the handle's operation is no longer pending, and notes how it ended.
void finish(Communicator& comm, Handle& handle, const Status& started, Outcome& outcome) {
  note(started.ok() ? comm.wait(handle) : started, outcome);
}

// The first rank that compares fails; the other may see that instead of the difference itself.
void expect_mismatch(const SharedArray<Outcome>& outcomes) {
  int mismatches = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Outcome& outcome = outcomes[rank];
    EXPECT_EQ(outcome.peer, 1 - rank) << outcome.message;
    if (outcome.code == Code::mismatch) {
      ++mismatches;
      continue;
    }
    EXPECT_EQ(outcome.code, Code::peer_lost) << outcome.message;
    EXPECT_STREQ(outcome.what, "failed") << outcome.message;
  }
  EXPECT_GE(mismatches, 1) << outcomes[0].message << "\n" << outcomes[1].message;
}

void expect_field(const SharedArray<Outcome>& outcomes, const std::string& field,
                  std::uint64_t on_rank_0, std::uint64_t on_rank_1) {
  expect_mismatch(outcomes);
  for (int rank = 0; rank < 2; ++rank) {
    const Outcome& outcome = outcomes[rank];
    if (outcome.code != Code::mismatch) continue;
    EXPECT_EQ(outcome.what, field) << outcome.message;
    EXPECT_EQ(outcome.expected, rank == 0 ? on_rank_0 : on_rank_1) << outcome.message;
    EXPECT_EQ(outcome.seen, rank == 0 ? on_rank_1 : on_rank_0) << outcome.message;
    const std::string message = outcome.message;
    for (const std::string& part : {field, std::string("rank 0"), std::string("rank 1")}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

class MismatchTest : public testing::TestWithParam<RankKind> {
 protected:
  // Each rank dispatches its own idea of the problem.
  void dispatch_differently(const Problem& on_rank_0, const Problem& on_rank_1,
                            const SharedArray<Outcome>& outcomes) {
    CommunicatorOptions options = options_for(on_rank_0);
    options.max_hidden = 512;
    options.max_topk = 8;
    run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options);
      Worker worker(bootstrap.rank == 0 ? on_rank_0 : on_rank_1, bootstrap.rank);
      finish(comm, worker.handle, worker.start_dispatch(comm), outcomes[bootstrap.rank]);
    });
  }
};

TEST_P(MismatchTest, NamesTheHiddenSize) {
  const SharedArray<Outcome> outcomes(2);
  dispatch_differently(make_problem({.hidden = 24}), make_problem({.hidden = 40}), outcomes);
  expect_field(outcomes, "hidden", 24, 40);
}

TEST_P(MismatchTest, NamesTheTopk) {
  const SharedArray<Outcome> outcomes(2);
  dispatch_differently(make_problem({.topk = 2}), make_problem({.topk = 3}), outcomes);
  expect_field(outcomes, "topk", 2, 3);
}

TEST_P(MismatchTest, NamesTheDtype) {
  const SharedArray<Outcome> outcomes(2);
  dispatch_differently(make_problem({.dtype = DType::bf16}), make_problem({.dtype = DType::fp16}),
                       outcomes);
  expect_field(outcomes, "dtype", static_cast<std::uint64_t>(DType::bf16),
               static_cast<std::uint64_t>(DType::fp16));
}

TEST_P(MismatchTest, NamesTheLayout) {
  const SharedArray<Outcome> outcomes(2);
  Problem other = make_problem({});
  other.layout = Layout::expert_major;
  other.reduction = Reduction::per_rank;
  dispatch_differently(make_problem({}), other, outcomes);
  expect_field(outcomes, "layout", static_cast<std::uint64_t>(Layout::rank_major),
               static_cast<std::uint64_t>(Layout::expert_major));
}

TEST_P(MismatchTest, NamesTheReduction) {
  const SharedArray<Outcome> outcomes(2);
  Problem exact = make_problem({.layout = Layout::expert_major});
  Problem per_rank = exact;
  exact.reduction = Reduction::exact;
  per_rank.reduction = Reduction::per_rank;
  dispatch_differently(exact, per_rank, outcomes);
  expect_field(outcomes, "reduction", static_cast<std::uint64_t>(Reduction::exact),
               static_cast<std::uint64_t>(Reduction::per_rank));
}

TEST_P(MismatchTest, NamesTopk1) {
  const SharedArray<Outcome> outcomes(2);
  Problem other = make_problem({});
  other.topk1 = true;
  dispatch_differently(make_problem({}), other, outcomes);
  expect_field(outcomes, "topk1", 0, 1);
}

// Rank 0 dispatches a second time where rank 1 combines the first.
TEST_P(MismatchTest, DispatchAgainstCombineNamesBoth) {
  const Problem problem = make_problem({});
  const SharedArray<Outcome> outcomes(2);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker a(problem, bootstrap.rank);
    Worker b(problem, bootstrap.rank);
    ASSERT_TRUE(a.dispatch(comm).ok());
    if (bootstrap.rank == 0) {
      finish(comm, b.handle, b.start_dispatch(comm), outcomes[0]);
    } else {
      finish(comm, a.handle, a.start_combine(comm), outcomes[1]);
    }
  });
  expect_mismatch(outcomes);
  for (const int rank : {0, 1}) {
    if (outcomes[rank].code != Code::mismatch) continue;
    const std::string message = outcomes[rank].message;
    EXPECT_NE(message.find("dispatch"), std::string::npos) << message;
    EXPECT_NE(message.find("combine"), std::string::npos) << message;
  }
}

// Two leases, combined in different orders.
TEST_P(MismatchTest, CombinesInDifferentOrders) {
  const Problem problem = make_problem({});
  const SharedArray<Outcome> outcomes(2);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker a(problem, bootstrap.rank);
    Worker b(problem, bootstrap.rank);
    ASSERT_TRUE(a.dispatch(comm).ok());
    ASSERT_TRUE(b.dispatch(comm).ok());
    Worker& first = bootstrap.rank == 0 ? a : b;
    finish(comm, first.handle, first.start_combine(comm), outcomes[bootstrap.rank]);
  });
  expect_field(outcomes, "epoch", 1, 2);
}

// The ranks repeat the routing of different dispatches.
TEST_P(MismatchTest, DifferentCachedHandles) {
  const Problem problem = make_problem({});
  const SharedArray<Outcome> outcomes(2);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker a(problem, bootstrap.rank);
    Worker b(problem, bootstrap.rank);
    EXPECT_EQ(a.round(comm), "");
    EXPECT_EQ(b.round(comm), "");
    Worker again(problem, bootstrap.rank);
    const Handle& cached = bootstrap.rank == 0 ? a.handle : b.handle;
    finish(comm, again.handle, again.start_dispatch(comm, cached), outcomes[bootstrap.rank]);
  });
  expect_field(outcomes, "origin", 1, 2);
}

// One rank releases, the other combines.
TEST_P(MismatchTest, ReleaseAgainstCombine) {
  const Problem problem = make_problem({.experts_per_rank = 1});
  const SharedArray<Outcome> outcome(1);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.dispatch(comm).ok());
    if (bootstrap.rank == 1) {
      comm.release(worker.handle);
      EXPECT_FALSE(worker.handle.holds_lease());
      (void)worker.dispatch(comm);  // stays until rank 0 has failed
    } else {
      finish(comm, worker.handle, worker.start_combine(comm), outcome[0]);
    }
  });
  EXPECT_EQ(outcome[0].code, Code::mismatch) << outcome[0].message;
  EXPECT_EQ(outcome[0].peer, 1) << outcome[0].message;
}

// The same when the rank that released starts nothing afterwards.
TEST_P(MismatchTest, ReleaseAgainstCombineOfAnIdleRank) {
  const Problem problem = make_problem({.experts_per_rank = 1});  // rank 0 needs rank 1's outputs
  const SharedArray<Outcome> outcome(1);
  const Gate failed(1);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.timeout = std::chrono::seconds(5);
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.dispatch(comm).ok());
    if (bootstrap.rank == 1) {
      comm.release(worker.handle);
      failed.wait();
    } else {
      finish(comm, worker.handle, worker.start_combine(comm), outcome[0]);
      failed.arrive();
    }
  });
  EXPECT_EQ(outcome[0].code, Code::mismatch) << outcome[0].message;
  EXPECT_EQ(outcome[0].peer, 1) << outcome[0].message;
}

TEST_P(MismatchTest, IsRepeatedByEveryLaterCall) {
  const Problem small = make_problem({.hidden = 8});
  const Problem large = make_problem({.hidden = 16});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(large);
    options.timeout = std::chrono::seconds(5);
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(bootstrap.rank == 0 ? small : large, bootstrap.rank);
    const Status first = worker.dispatch(comm);
    ASSERT_FALSE(first.ok());
    if (first.code != Code::mismatch) return;
    Worker other(small, bootstrap.rank);
    const Status again = other.dispatch(comm);
    EXPECT_EQ(again.code, Code::mismatch) << again.message();
    EXPECT_STREQ(again.what, first.what);
    EXPECT_EQ(again.peer, first.peer);
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, MismatchTest,
                         testing::Values(RankKind::threads, RankKind::processes), KindName());

}  // namespace
}  // namespace ubep::test
