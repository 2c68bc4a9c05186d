// Waits are bounded and say who is awaited; what is not ready can be tried again.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kShort{150};
constexpr milliseconds kLate{900};
constexpr milliseconds kBound{4000};  // a loaded machine may be late, not endless

CommunicatorOptions impatient(const Problem& problem) {
  CommunicatorOptions options = options_for(problem);
  options.timeout = kShort;
  return options;
}

void expect_timeout_of_rank_2(const Status& status, milliseconds took) {
  EXPECT_EQ(status.code, Code::timeout) << status.message();
  EXPECT_EQ(status.peer, 2) << status.message();
  EXPECT_EQ(status.missing, 0b100U) << status.message();
  EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
  EXPECT_GE(took, kShort - milliseconds(20));
  EXPECT_LT(took, kBound);
}

// Waits again and again: each call times out or ends it.
Status wait_patiently(Communicator& comm, Handle& handle) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  Status status = comm.wait(handle);
  while (status.code == Code::timeout && steady_clock::now() < deadline) {
    status = comm.wait(handle);
  }
  return status;
}

class TimeoutTest : public testing::TestWithParam<RankKind> {};

TEST_P(TimeoutTest, DispatchNamesTheMissingAndResumes) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, impatient(problem));
    Worker worker(problem, bootstrap.rank);
    if (bootstrap.rank == 2) {
      std::this_thread::sleep_for(kLate);
      ASSERT_TRUE(worker.start_dispatch(comm).ok());
    } else {
      const auto start = steady_clock::now();
      const Status status = worker.dispatch(comm);
      expect_timeout_of_rank_2(
          status, std::chrono::duration_cast<milliseconds>(steady_clock::now() - start));
      EXPECT_EQ(status.kind, OpKind::dispatch);
      EXPECT_EQ(comm.poll(worker.handle).code, Code::not_ready);
    }
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    EXPECT_EQ(worker.received_difference(), "");
    ASSERT_TRUE(worker.start_combine(comm).ok());
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

// Lanes that never stop stepping must not keep a waiting one from saying who is awaited.
TEST_P(TimeoutTest, BusyLanesDoNotHideTheMissing) {
  const Problem problem = make_problem({.ranks = 3});
  constexpr int kLanes = 4;
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, impatient(problem));
    Worker worker(problem, bootstrap.rank);
    if (bootstrap.rank == 2) {
      std::this_thread::sleep_for(kLate);
      ASSERT_TRUE(worker.start_dispatch(comm).ok());
    } else {
      ASSERT_TRUE(worker.start_dispatch(comm).ok());
      std::atomic<bool> stop{false};
      std::vector<std::thread> lanes;
      for (int lane = 1; lane < kLanes; ++lane) {
        lanes.emplace_back([&, lane] {
          while (!stop) comm.step(lane, kLanes);
        });
      }
      const auto start = steady_clock::now();
      const Status status = comm.wait(worker.handle);
      const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
      stop = true;
      for (std::thread& lane : lanes) lane.join();
      expect_timeout_of_rank_2(status, took);
    }
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    EXPECT_EQ(worker.received_difference(), "");
    ASSERT_TRUE(worker.start_combine(comm).ok());
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

TEST_P(TimeoutTest, CombineNamesTheMissingAndResumes) {
  const Problem problem = make_problem({.ranks = 3, .experts_per_rank = 1, .topk = 3});
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, impatient(problem));
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.start_dispatch(comm).ok());
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    if (bootstrap.rank == 2) {
      std::this_thread::sleep_for(kLate);
      ASSERT_TRUE(worker.start_combine(comm).ok());
    } else {
      const auto start = steady_clock::now();
      const Status status = worker.combine(comm);
      expect_timeout_of_rank_2(
          status, std::chrono::duration_cast<milliseconds>(steady_clock::now() - start));
      EXPECT_EQ(status.kind, OpKind::combine);
    }
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

TEST_P(TimeoutTest, ADeadlineIsKept) {
  const Problem problem = make_problem({.ranks = 2});
  const Gate done(1);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    if (bootstrap.rank == 1) {
      done.wait();
      ASSERT_TRUE(worker.start_dispatch(comm).ok());
    } else {
      ASSERT_TRUE(worker.start_dispatch(comm).ok());
      const auto start = steady_clock::now();
      const Status status = comm.wait(worker.handle, start + kShort);
      EXPECT_EQ(status.code, Code::timeout) << status.message();
      EXPECT_EQ(status.missing, 0b10U);
      EXPECT_GE(steady_clock::now() - start, kShort);
      EXPECT_LT(steady_clock::now() - start, kBound);
      done.arrive();
    }
    EXPECT_TRUE(comm.wait(worker.handle).ok());
    EXPECT_EQ(worker.received_difference(), "");
  });
}

// A pending operation may also be given up.
TEST_P(TimeoutTest, APendingDispatchMayBeDestroyed) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, impatient(problem));
    if (bootstrap.rank == 1) {
      std::this_thread::sleep_for(3 * kShort);
      return;
    }
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.dispatch(comm).code, Code::timeout);
  });
}

TEST_P(TimeoutTest, AllSlotsLeasedIsSlotBusy) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker a(problem, bootstrap.rank);
    Worker b(problem, bootstrap.rank);
    Worker c(problem, bootstrap.rank);
    ASSERT_TRUE(a.dispatch(comm).ok());
    ASSERT_TRUE(b.dispatch(comm).ok());
    EXPECT_EQ(c.start_dispatch(comm).code, Code::slot_busy);
    EXPECT_EQ(c.dispatch(comm).code, Code::slot_busy);
    EXPECT_EQ(c.handle.epoch(), 0U);
    EXPECT_FALSE(c.handle.holds_lease());
    EXPECT_EQ(a.received_difference(), "");
    EXPECT_EQ(b.received_difference(), "");
    EXPECT_TRUE(a.combine(comm).ok());
    EXPECT_EQ(c.round(comm), "");  // nothing was published, no epoch was lost
    EXPECT_EQ(c.handle.epoch(), 3U);
    EXPECT_TRUE(b.combine(comm).ok());
    EXPECT_EQ(b.out_difference(), "");
  });
}

// With one slot every dispatch needs the credit of the one before.
TEST_P(TimeoutTest, OneSlotIsEnough) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.slots = 1;
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank);
    for (std::uint64_t round = 0; round < 50; ++round) {
      ASSERT_EQ(worker.round(comm), "") << "round " << round;
      ASSERT_EQ(worker.handle.epoch(), 2 * round + 1);
      ASSERT_TRUE(worker.dispatch(comm).ok());
      comm.release(worker.handle);
      ASSERT_EQ(worker.handle.epoch(), 2 * round + 2);
    }
  });
}

// Rank 1 has given its outputs but still reads: its slot is not free, and start_dispatch says so.
TEST_P(TimeoutTest, AMissingCreditIsNotReady) {
  const Problem problem = make_problem({.ranks = 2, .experts_per_rank = 1});
  const Gate started(1);
  const Gate tried(1);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.slots = 1;
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.dispatch(comm).ok());
    if (bootstrap.rank == 1) {
      ASSERT_TRUE(worker.start_combine(comm).ok());
      while (comm.step() > 0) {  // its outputs are out now; rank 0's are not
      }
      started.arrive();
      tried.wait();
      ASSERT_TRUE(comm.wait(worker.handle).ok());
    } else {
      started.wait();
      ASSERT_TRUE(worker.combine(comm).ok());
      const Status status = worker.start_dispatch(comm);
      EXPECT_EQ(status.code, Code::not_ready) << status.message();
      EXPECT_EQ(status.peer, 1) << status.message();
      EXPECT_EQ(status.word, Word::done) << status.message();
      tried.arrive();
      EXPECT_EQ(worker.out_difference(), "");
    }
    EXPECT_EQ(worker.round(comm), "");
    EXPECT_EQ(worker.handle.epoch(), 2U);
  });
}

// A stopped process is awaited, not given up, and goes on where it was.
TEST(StoppedPeerTest, IsATimeoutAndNotADeath) {
  const Problem problem = make_problem({.ranks = 2});
  const SharedArray<pid_t> stopped(1);
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, impatient(problem));
    Worker worker(problem, bootstrap.rank);
    if (bootstrap.rank == 1) {
      stopped[0] = getpid();
      raise(SIGSTOP);
      ASSERT_TRUE(worker.start_dispatch(comm).ok());
    } else {
      const Status status = worker.dispatch(comm);
      EXPECT_EQ(status.code, Code::timeout) << status.message();
      EXPECT_EQ(status.missing, 0b10U) << status.message();
      ASSERT_NE(stopped[0], 0);
      kill(stopped[0], SIGCONT);
    }
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    EXPECT_EQ(worker.received_difference(), "");
    ASSERT_TRUE(worker.start_combine(comm).ok());
    ASSERT_TRUE(wait_patiently(comm, worker.handle).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, TimeoutTest,
                         testing::Values(RankKind::threads, RankKind::processes), KindName());

}  // namespace
}  // namespace ubep::test
