// What one process sees of the ranks in others.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "support/ranks.hpp"
#include "support/worker.hpp"
#include "ubep/inspect.hpp"

namespace ubep::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

std::optional<RankReport> look_at(const Bootstrap& bootstrap, int rank) {
  for (const RankReport& report : inspect_ranks()) {
    if (report.job == bootstrap.job && report.rank == rank) return report;
  }
  return {};
}

// Looks until `enough` holds, for a while.
template <class Enough>
std::optional<RankReport> await(const Bootstrap& bootstrap, int rank, Enough enough) {
  std::optional<RankReport> report;
  for (const auto until = steady_clock::now() + 10s; steady_clock::now() < until;) {
    report = look_at(bootstrap, rank);
    if (report && enough(*report)) break;
    std::this_thread::sleep_for(20ms);
  }
  return report;
}

// A wait goes on from call to call, however short they are.
TEST(InspectTest, AWaitInSlicesIsShownWithItsWholeAge) {
  const Problem problem = make_problem({.ranks = 2});
  for (const auto slice : {3ms, 15ms, 150ms}) {
    run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      Worker worker(problem, bootstrap.rank);
      ASSERT_EQ(worker.round(comm), "");
      if (bootstrap.rank == 0) {
        ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
        Status status;
        do {
          status = comm.wait(worker.handle, steady_clock::now() + slice);
        } while (status.code == Code::timeout);
        EXPECT_TRUE(status.ok()) << status.message();
      } else {
        const auto seen =
            await(bootstrap, 0, [](const RankReport& r) { return r.waited_ms > 400; });
        ASSERT_TRUE(seen.has_value());
        EXPECT_GT(seen->waited_ms, 400);
        EXPECT_EQ(seen->wait.peer, 1);
        EXPECT_EQ(seen->wait.word, Word::op);
        EXPECT_EQ(seen->wait.seen, 2U);  // it has started two operations
        EXPECT_EQ(seen->wait.expected, 3U);
        EXPECT_EQ(seen->kind, OpKind::dispatch);
        EXPECT_TRUE(seen->alive);
        EXPECT_NE(seen->pid, getpid());
        EXPECT_TRUE(worker.dispatch(comm).ok());
      }
      EXPECT_EQ(worker.received_difference(), "");
      EXPECT_TRUE(worker.combine(comm).ok());
      EXPECT_EQ(worker.round(comm), "");
    });
  }
}

TEST(InspectTest, AMeetingThatIsAwaitedIsShown) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    if (bootstrap.rank == 1) {
      const auto seen =
          await(bootstrap, 0, [](const RankReport& r) { return !r.wait_for.empty(); });
      ASSERT_TRUE(seen.has_value());
      EXPECT_EQ(seen->wait_for, "update_membership: not all are here");
    }
    comm.update_membership({0, 1});
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
  });
}

TEST(InspectTest, TheDeadAreShownWhileSomebodyHasTheirSegment) {
  const Problem problem = make_problem({.ranks = 2});
  const SharedArray<int> pid(1);
  (void)rank_statuses(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    if (bootstrap.rank == 1) {
      pid[0] = getpid();
      kill(getpid(), SIGKILL);
    }
    const auto seen = await(bootstrap, 1, [](const RankReport& r) { return !r.alive; });
    ASSERT_TRUE(seen.has_value());
    EXPECT_FALSE(seen->alive);
    EXPECT_EQ(seen->state, "dead");
    EXPECT_EQ(seen->pid, pid[0]);
    EXPECT_EQ(seen->kind, OpKind::none);
  });
}

}  // namespace
}  // namespace ubep::test
