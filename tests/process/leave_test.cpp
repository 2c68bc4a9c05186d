// Ranks that go: close(), exit without close(), destruction in any order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

class LeaveTest : public testing::TestWithParam<RankKind> {};

// Rounds of the ranks that stay: one peer_lost that names rank 1, then only ok.
void go_on_without_rank_1(Communicator& comm, Worker& worker, const char* what) {
  int losses = 0;
  for (int round = 0; round < 5; ++round) {
    for (const bool dispatch : {true, false}) {
      const Status status = dispatch ? worker.dispatch(comm) : worker.combine(comm);
      if (status.ok()) continue;
      ++losses;
      EXPECT_EQ(status.code, Code::peer_lost) << status.message();
      EXPECT_EQ(status.peer, 1) << status.message();
      EXPECT_EQ(status.missing, 0b10U) << status.message();
      EXPECT_STREQ(status.what, what);
      EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    }
    EXPECT_EQ(worker.out_difference(0b10), "");
  }
  EXPECT_EQ(losses, 1);
}

TEST_P(LeaveTest, CloseIsReportedAsLeft) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
    EXPECT_EQ(worker.round(comm), "");
    if (bootstrap.rank == 1) {
      comm.close();
    } else {
      go_on_without_rank_1(comm, worker, "left");
    }
  });
}

TEST_P(LeaveTest, DestructionIsReportedAsLeft) {
  const Problem problem = make_problem({.ranks = 3, .layout = Layout::expert_major});
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    std::optional<Communicator> comm(Communicator::create(bootstrap, options_for(problem)));
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(*comm), "");
    if (bootstrap.rank == 1) {
      comm.reset();
    } else {
      go_on_without_rank_1(*comm, worker, "left");
    }
  });
}

// What a rank published before it left stays readable.
TEST_P(LeaveTest, PeersStillGetTheLastOutputs) {
  const Problem problem = make_problem({.ranks = 4});
  for (int repeat = 0; repeat < 10; ++repeat) {
    run_ranks(GetParam(), 4, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      Worker worker(problem, bootstrap.rank);
      EXPECT_EQ(worker.round(comm), "");
      // Rank 3 reads late; the others are gone by then.
      ASSERT_TRUE(worker.dispatch(comm).ok());
      if (bootstrap.rank == 3) usleep(3000);
      const Status status = worker.combine(comm);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(worker.out_difference(), "");
      comm.close();
    });
  }
}

TEST_P(LeaveTest, CloseTwiceAndThenNothingWorks) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
    comm.close();
    comm.close();
    try {
      (void)worker.dispatch(comm);
      ADD_FAILURE() << "dispatch after close() did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::misuse) << error.what();
    }
    EXPECT_THROW(comm.step(), Error);
    comm.close();
  });
}

TEST_P(LeaveTest, AHandleOutlivesItsLeaseAndItsCommunicator) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    std::optional<Worker> ended(std::in_place, problem, bootstrap.rank);
    std::optional<Worker> leased(std::in_place, problem, bootstrap.rank);
    std::optional<Communicator> comm(Communicator::create(bootstrap, options_for(problem)));
    EXPECT_EQ(ended->round(*comm), "");
    ASSERT_TRUE(leased->dispatch(*comm).ok());
    EXPECT_TRUE(leased->handle.holds_lease());
    comm.reset();
    EXPECT_EQ(ended->out_difference(), "");  // valid_tokens() lives in the handle
    for (Worker* worker : {&*ended, &*leased}) {
      EXPECT_FALSE(worker->handle.holds_lease());
      EXPECT_THROW((void)worker->handle.received(), Error);
      EXPECT_THROW((void)worker->handle.expert_output(), Error);
    }
    ended.reset();
    leased.reset();
  });
}

TEST_P(LeaveTest, DestroyInAnyOrderWithOpenLeases) {
  const Problem problem = make_problem({.ranks = 3});
  for (int order = 0; order < 4; ++order) {
    run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
      std::optional<Communicator> comm(Communicator::create(bootstrap, options_for(problem)));
      std::optional<Worker> a(std::in_place, problem, bootstrap.rank);
      std::optional<Worker> b(std::in_place, problem, bootstrap.rank);
      ASSERT_TRUE(a->dispatch(*comm).ok());
      ASSERT_TRUE(b->start_dispatch(*comm).ok());  // nobody waits for it
      usleep(static_cast<unsigned>(1000 * ((order + bootstrap.rank) % 3)));
      if (order % 2 == 0) comm.reset();
      if (order < 2) a.reset();
      b.reset();
      comm.reset();
      a.reset();
    });
  }
}

TEST_P(LeaveTest, AMovedCommunicatorAndHandleGoOn) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator first = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.dispatch(first).ok());
    Communicator comm = std::move(first);
    Handle moved = std::move(worker.handle);
    worker.handle = std::move(moved);
    EXPECT_EQ(worker.received_difference(), "");
    EXPECT_TRUE(worker.combine(comm).ok());
    EXPECT_EQ(worker.out_difference(), "");
    EXPECT_EQ(worker.round(comm), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, LeaveTest, testing::Values(RankKind::threads, RankKind::processes),
                         KindName());

// exit() without close(): nobody said goodbye, so it is a death.
TEST(ExitTest, WithoutCloseIsDeath) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
    if (bootstrap.rank == 1) _exit(0);
    go_on_without_rank_1(comm, worker, "dead");
  });
}

}  // namespace
}  // namespace ubep::test
