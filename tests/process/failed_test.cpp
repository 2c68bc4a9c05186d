// What a handle shows after its operation failed, and deaths that nobody waits long for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

using std::chrono::steady_clock;

TEST(FailedOperationTest, ReceivedRowsOfAnEarlierEpochAreNotShown) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    const Path path = bootstrap.rank == 1 ? Path::allgather : Path::read;
    Worker worker(problem, bootstrap.rank);
    ASSERT_EQ(worker.round(comm), "");
    const Status status =
        comm.dispatch(worker.x(), worker.routing(), {.path = path}, worker.handle);
    EXPECT_EQ(status.code == Code::mismatch || status.code == Code::peer_lost, true)
        << status.message();
    if (status.code != Code::mismatch) return;
    EXPECT_NE(status.message().find("allgather"), std::string::npos) << status.message();
    EXPECT_THROW((void)worker.handle.received(), Error);
    EXPECT_THROW((void)worker.handle.expert_output(), Error);
  });
}

TEST(FailedOperationTest, NoTokenOfAFailedCombineIsValid) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.dispatch(comm).ok());
    if (bootstrap.rank == 1) {
      comm.release(worker.handle);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return;
    }
    EXPECT_EQ(worker.combine(comm).code, Code::mismatch);
    const auto valid = worker.handle.valid_tokens();
    EXPECT_EQ(std::count(valid.begin(), valid.end(), std::uint8_t{1}), 0);
  });
}

// However short each wait or rare each step is, a dead rank is told as dead.
TEST(ImpatientTest, ShortWaitsAndRareStepsFindADeath) {
  const Problem problem = make_problem({.ranks = 2});
  for (const bool waits : {true, false}) {
    const Gate created(2);
    const std::vector<int> statuses =
        rank_statuses(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
          Communicator comm = Communicator::create(bootstrap, options_for(problem));
          created.arrive_and_wait();
          if (bootstrap.rank == 1) _exit(3);
          Worker worker(problem, bootstrap.rank);
          ASSERT_TRUE(worker.start_dispatch(comm).ok());
          const auto until = steady_clock::now() + std::chrono::seconds(10);
          Status status = comm.poll(worker.handle);
          while ((status.code == Code::not_ready || status.code == Code::timeout) &&
                 steady_clock::now() < until) {
            if (waits) {
              status = comm.wait(worker.handle, steady_clock::now());
              continue;
            }
            (void)comm.step();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            status = comm.poll(worker.handle);
          }
          EXPECT_EQ(status.code, Code::peer_lost) << status.message();
          EXPECT_LT(steady_clock::now(), until - std::chrono::seconds(8));
        });
    EXPECT_EQ(statuses, (std::vector<int>{0, 3}));
  }
}

}  // namespace
}  // namespace ubep::test
