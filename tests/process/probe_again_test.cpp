// The placement is probed again every thousand dispatches or so, by ranks that are at work.
#include <gtest/gtest.h>

#include <chrono>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

TEST(ProbeAgainTest, ItHasAnswersAndChangesNoResult) {
  const Problem problem = make_problem({.ranks = 2, .tokens = 1, .layout = Layout::expert_major});
  const SharedArray<int> probes(2);
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    const std::uint64_t before = comm.facts().probes;
    // A busy machine can miss some; both ranks do as many rounds.
    for (int round = 0; round < 16 * 1024 + 10; ++round) {
      ASSERT_TRUE(worker.dispatch(comm).ok());
      ASSERT_TRUE(worker.combine(comm).ok());
      ASSERT_EQ(worker.out_difference(), "");
    }
    probes[bootstrap.rank] = static_cast<int>(comm.facts().probes - before);
    EXPECT_EQ(worker.round(comm), "");
  });
  EXPECT_GE(std::max(probes[0], probes[1]), 1);
  EXPECT_LE(std::max(probes[0], probes[1]), 16);
}

}  // namespace
}  // namespace ubep::test
