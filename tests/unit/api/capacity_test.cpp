// What does not fit is refused before anything is published, and can be tried again.
#include <gtest/gtest.h>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

// Both ranks go on as if the refused call had never been.
void expect_next_round_works(Communicator& comm, Worker& worker, std::uint64_t epoch) {
  EXPECT_EQ(worker.round(comm), "");
  EXPECT_EQ(worker.handle.epoch(), epoch);
}

TEST(CapacityTest, MoreTokensThanDeclared) {
  const Problem fits = make_problem({.tokens = 4});
  const Problem large = make_problem({.tokens = 5});
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(fits));
    Worker worker(fits, bootstrap.rank);
    expect_next_round_works(comm, worker, 1);
    Worker refused(large, bootstrap.rank);
    const Status status = refused.start_dispatch(comm);
    EXPECT_EQ(status.code, Code::no_capacity) << status.message();
    EXPECT_EQ(status.seen, 5U);
    EXPECT_EQ(status.expected, 4U);
    EXPECT_FALSE(refused.handle.holds_lease());
    EXPECT_EQ(refused.dispatch(comm).code, Code::no_capacity);
    Rows x;
    EXPECT_EQ(comm.input(5, fits.hidden, fits.dtype, x).code, Code::no_capacity);
    expect_next_round_works(comm, worker, 2);
  });
}

// One expert on rank 0, chosen three times by each token.
Problem repeating(Layout layout, bool topk1) {
  Problem problem = make_problem({.tokens = 4, .topk = 3, .layout = layout});
  problem.topk1 = topk1;
  problem.expert_rank = {0, 1, 1, 1};
  for (RankInput& input : problem.ranks) input.topk_idx.assign(input.topk_idx.size(), 0);
  return problem;
}

void expect_fits(const Problem& problem) {
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    expect_next_round_works(comm, worker, 1);
    expect_next_round_works(comm, worker, 2);
  });
}

TEST(CapacityTest, RepeatedExpertsFit) { expect_fits(repeating(Layout::expert_major, false)); }
TEST(CapacityTest, RepeatedExpertsFitTopk1) { expect_fits(repeating(Layout::rank_major, true)); }
TEST(CapacityTest, RankMajorSendsARepeatedTokenOnce) {
  expect_fits(repeating(Layout::rank_major, false));
}

// Rows count in bytes: half as many fp32 elements as bf16 ones.
TEST(CapacityTest, AWiderTypeFitsWithFewerElements) {
  const Problem declared = make_problem({.hidden = 64, .dtype = DType::bf16});
  const Problem fp32 = make_problem({.hidden = 32, .dtype = DType::fp32});
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(declared));
    Worker worker(fp32, bootstrap.rank);
    expect_next_round_works(comm, worker, 1);
  });
}

TEST(CapacityTest, PlanIsWhatCreationReserves) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    const CommunicatorOptions options = options_for(problem);
    const MemoryPlan plan = Communicator::plan_memory(options, bootstrap.rank, 2);
    Communicator comm = Communicator::create(bootstrap, options);
    EXPECT_EQ(comm.memory().shared_bytes, plan.shared_bytes);
    EXPECT_EQ(comm.memory().private_bytes, plan.private_bytes);
    EXPECT_GT(plan.shared_bytes, 0U);
    CommunicatorOptions twice = options;
    twice.max_tokens *= 64;
    EXPECT_GT(Communicator::plan_memory(twice, bootstrap.rank, 2).shared_bytes, plan.shared_bytes);
  });
}

}  // namespace
}  // namespace ubep::test
