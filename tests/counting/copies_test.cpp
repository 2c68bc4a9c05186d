// How often each path copies a row, counted in the kernels themselves: the baselines use the same
// kernels, lanes and waiter as the library's own paths, and copy no more than is stated.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "counting/kernels.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

struct Way {
  Path path;
  Layout layout;
  Store store;
};

std::string way_name(const testing::TestParamInfo<Way>& info) {
  return std::string(name(info.param.path)) + "_" + name(info.param.layout) + "_" +
         name(info.param.store);
}

constexpr int kRanks = 3;

Problem problem_of(const Way& way, int tokens, int hidden) {
  Problem problem = make_problem({.ranks = kRanks,
                                  .experts_per_rank = 3,
                                  .tokens = tokens,
                                  .hidden = hidden,
                                  .topk = 3,
                                  .layout = way.layout});
  problem.every_token = way.path == Path::allgather;
  problem.ranks[1].tokens = 0;  // one rank sends nothing
  problem.ranks[1].x.clear();
  problem.ranks[1].topk_idx.clear();
  problem.ranks[1].topk_weights.clear();
  return problem;
}

// Rows of one rank: to others, to itself, and its tokens that have a row elsewhere.
struct RowCounts {
  std::uint64_t out = 0;
  std::uint64_t own = 0;
  std::uint64_t crossing_tokens = 0;
};

RowCounts rows_from(const Problem& problem, int rank) {
  const std::vector<std::int32_t> owners = owners_of(problem);
  const RankInput& input = problem.ranks[static_cast<std::size_t>(rank)];
  RowCounts rows;
  for (std::int64_t t = 0; t < input.tokens; ++t) {
    std::multiset<int> to;
    for (int k = 0; k < problem.topk; ++k) {
      to.insert(owners[static_cast<std::size_t>(
          input.topk_idx[static_cast<std::size_t>(t * problem.topk + k)])]);
    }
    if (problem.every_token) to = {0, 1, 2};
    for (int r = 0; r < kRanks; ++r) {
      const std::size_t all = to.count(r);
      const std::uint64_t sent =
          problem.layout == Layout::rank_major ? std::min<std::size_t>(all, 1) : all;
      (r == rank ? rows.own : rows.out) += sent;
    }
    rows.crossing_tokens += to.count(rank) < to.size() ? 1 : 0;
  }
  return rows;
}

struct Stated {
  std::uint64_t dispatch = 0;
  std::uint64_t combine = 0;
};

// Row copies of all ranks.
Stated stated_copies(const Way& way, const Problem& problem) {
  Stated stated;
  for (int rank = 0; rank < kRanks; ++rank) {
    const RowCounts rows = rows_from(problem, rank);
    switch (way.path) {
      case Path::read:  // into the slot
        stated.dispatch += rows.crossing_tokens;
        break;
      case Path::pull:  // into the slot, out of it to its place
        stated.dispatch += rows.crossing_tokens + rows.out + rows.own;
        break;
      case Path::push:  // to its place
        stated.dispatch += rows.out + rows.own;
        break;
      case Path::bsp:  // into the window, out of it to its place
        stated.dispatch += 2 * rows.out + rows.own;
        break;
      default:  // allgather: into the slot, out of it; own rows stay
        stated.dispatch += rows.crossing_tokens + rows.out;
    }
    // Outputs are read where they are; far they are stored for others first. bsp stores them back.
    const bool stored = way.store == Store::far || way.path == Path::bsp;
    stated.combine += stored ? rows.out : 0;
  }
  return stated;
}

class CopiesTest : public testing::TestWithParam<Way> {};

TEST_P(CopiesTest, AreAsStatedInTheSameKernelsAndWaiter) {
  const Way way = GetParam();
  const Problem problem = problem_of(way, 5, 777);
  const std::uint64_t row_bytes = 2 * 777;
  std::atomic<std::uint64_t> dispatched{0};
  std::atomic<std::uint64_t> combined{0};
  std::atomic<std::uint64_t> told{0};
  std::atomic<std::uint64_t> idle{0};
  run_ranks(RankKind::threads, kRanks, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.store = way.store;
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank, {.path = way.path});
    EXPECT_EQ(worker.round(comm), "");
    if (bootstrap.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    start_counting(row_bytes);
    const Status status = worker.dispatch(comm);
    const KernelCounts d = stop_counting();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(worker.received_difference(), "");
    ASSERT_EQ(d.copied_bytes() % row_bytes, 0U);
    const CombineArgs args = worker.prepare_combine();  // runs the experts
    start_counting(row_bytes);
    ASSERT_TRUE(comm.start_combine(worker.handle, args).ok());
    const Status finished = comm.wait(worker.handle);
    const KernelCounts c = stop_counting();
    ASSERT_TRUE(finished.ok()) << finished.message();
    EXPECT_EQ(worker.out_difference(), "");
    // No row is copied but by the kernels.
    EXPECT_EQ(d.memcpy_rows, d.plain_rows);
    EXPECT_EQ(c.memcpy_rows, c.plain_rows);
    dispatched += d.copied_bytes() / row_bytes;
    combined += c.copied_bytes() / row_bytes;
    idle += d.idle;
    const OperationStats stats = worker.handle.stats();
    told += (stats.dispatch_copied_bytes + stats.combine_copied_bytes) / row_bytes;
  });
  const Stated stated = stated_copies(way, problem);
  EXPECT_EQ(dispatched, stated.dispatch);
  EXPECT_EQ(combined, stated.combine);
  EXPECT_EQ(told, stated.dispatch + stated.combine);
  EXPECT_GT(idle, 0U) << "nobody waited in the waiter";
}

// Whatever is more than the start may do itself is left to the lanes.
TEST_P(CopiesTest, AreMadeByWhicheverLaneSteps) {
  const Way way = GetParam();
  const Problem problem = problem_of(way, 700, 1024);
  const std::uint64_t row_bytes = 2 * 1024;
  run_ranks(RankKind::threads, kRanks, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.store = way.store;
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank, {.path = way.path});
    start_counting(row_bytes);
    ASSERT_TRUE(worker.start_dispatch(comm).ok());
    const KernelCounts starter = stop_counting();
    EXPECT_EQ(starter.copied_bytes(), 0U);
    std::uint64_t by_lane = 0;
    std::thread lane([&] {
      start_counting(row_bytes);
      while (comm.poll(worker.handle).code == Code::not_ready) (void)comm.step(1, 2);
      by_lane = stop_counting().copied_bytes();
    });
    lane.join();
    EXPECT_EQ(worker.received_difference(), "");
    EXPECT_EQ(by_lane, worker.handle.stats().dispatch_copied_bytes);
    EXPECT_TRUE(worker.combine(comm).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Store store : {Store::near, Store::far}) {
    for (const Path path : {Path::pull, Path::push, Path::bsp}) {
      ways.push_back({path, Layout::expert_major, store});
    }
    for (const Path path : {Path::read, Path::pull, Path::push, Path::allgather}) {
      ways.push_back({path, Layout::rank_major, store});
    }
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Ways, CopiesTest, testing::ValuesIn(all_ways()), way_name);

}  // namespace
}  // namespace ubep::test
