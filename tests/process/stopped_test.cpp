// A rank that is stopped for longer than the others wait: each of their calls ends in time and says
// who is stuck and where; when that rank goes on, so do they, to the right bytes.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr milliseconds kLateness{200};  // of a call beyond its timeout

enum class When {
  before_dispatch,
  after_start_of_dispatch,
  before_combine,
  after_start_of_combine
};
constexpr When kWhen[] = {When::before_dispatch, When::after_start_of_dispatch,
                          When::before_combine, When::after_start_of_combine};

struct Way {
  Layout layout;
  Path path;
};
constexpr Way kWays[] = {{Layout::rank_major, Path::read},   {Layout::rank_major, Path::pull},
                         {Layout::rank_major, Path::push},   {Layout::rank_major, Path::allgather},
                         {Layout::expert_major, Path::pull}, {Layout::expert_major, Path::push},
                         {Layout::expert_major, Path::bsp},  {Layout::expert_padded, Path::pull},
                         {Layout::expert_padded, Path::push}};

struct Stop {
  Way way;
  When when;
  int victim;
  milliseconds stopped;
  milliseconds timeout;
};

std::string text_of(const Stop& stop) {
  return std::string(name(stop.way.layout)) + ", " + name(stop.way.path) + ", moment " +
         std::to_string(static_cast<int>(stop.when)) + ", rank " + std::to_string(stop.victim);
}

// Every token goes to every expert: all ranks need all ranks.
Problem problem_of(Layout layout) {
  Problem problem =
      make_problem({.ranks = kRanks, .experts_per_rank = 1, .topk = kRanks, .layout = layout});
  if (layout == Layout::expert_padded) problem.expert_capacity = 32;
  return problem;
}

// What the ranks of one stop share.
struct Shared {
  std::atomic<int> victim = 0;  // its process
  std::atomic<bool> resumed = false;
  std::atomic<int> told = 0;  // calls that ended with a timeout
};

class Rank {
 public:
  Rank(const Stop& stop, int rank, Communicator& comm, Shared& shared)
      : stop_(stop),
        problem_(problem_of(stop.way.layout)),
        rank_(rank),
        comm_(comm),
        shared_(shared),
        worker_(problem_, rank, {.path = stop.way.path}) {}

  void live() {
    begin_ = steady_clock::now();
    pause_at(When::before_dispatch);
    finish(rank_ == stop_.victim ? start_dispatch() : worker_.dispatch(comm_), OpKind::dispatch);
    EXPECT_EQ(worker_.received_difference(), "");
    begin_ = steady_clock::now();
    pause_at(When::before_combine);
    finish(rank_ == stop_.victim ? start_combine() : worker_.combine(comm_), OpKind::combine);
    EXPECT_EQ(worker_.out_difference(), "");
    while (!shared_.resumed) wake();
  }

 private:
  bool is_waker() const { return rank_ == (stop_.victim == 0 ? 1 : 0); }

  void pause_at(When when) {
    if (rank_ != stop_.victim || when != stop_.when) return;
    shared_.victim = getpid();
    raise(SIGSTOP);
    shared_.resumed = true;
  }
  Status start_dispatch() {
    const Status status = worker_.start_dispatch_when_ready(comm_);
    pause_at(When::after_start_of_dispatch);
    return status.ok() ? comm_.wait(worker_.handle) : status;
  }
  Status start_combine() {
    const Status status = worker_.start_combine(comm_);
    pause_at(When::after_start_of_combine);
    return status.ok() ? comm_.wait(worker_.handle) : status;
  }

  void wake() const {
    const auto at = begin_ + stop_.stopped;
    if (steady_clock::now() < at) std::this_thread::sleep_until(at);
    if (is_waker() && shared_.victim != 0) kill(shared_.victim, SIGCONT);
    std::this_thread::sleep_for(milliseconds(2));
  }

  // Waits on until the operation is complete, however often the call ends before.
  void finish(Status status, OpKind kind) {
    for (int calls = 1; status.code == Code::timeout; ++calls) {
      const auto took = steady_clock::now() - (calls == 1 ? begin_ : again_);
      if (rank_ != stop_.victim && !shared_.resumed) {
        EXPECT_LT(took, stop_.timeout + kLateness);
        EXPECT_GE(took, stop_.timeout);
        EXPECT_EQ(status.missing, std::uint64_t{1} << stop_.victim);
        EXPECT_NE(status.word, Word::none);
        const std::string victim = std::to_string(stop_.victim);
        expect_parts(status.message(), {name(kind), "waits for rank " + victim,
                                        std::string(name(status.word)) + " is ", "needs ",
                                        "(missing ranks: " + victim + ")"});
        ++shared_.told;
      }
      ASSERT_TRUE(worker_.handle.holds_lease() || kind == OpKind::combine);
      if (is_waker() && steady_clock::now() >= begin_ + stop_.stopped) wake();
      again_ = steady_clock::now();
      status = comm_.wait(worker_.handle);
    }
    EXPECT_TRUE(status.ok()) << status.message();
  }

  Stop stop_;
  Problem problem_;
  int rank_;
  Communicator& comm_;
  Shared& shared_;
  Worker worker_;
  steady_clock::time_point begin_;
  steady_clock::time_point again_;
};

// All stops in turn, of one communicator.
void run_stops(const std::vector<Stop>& stops) {
  const SharedArray<Shared> shared(stops.size());
  const SharedArray<std::atomic<int>> here(stops.size());
  run_ranks(RankKind::processes, kRanks, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem_of(Layout::expert_padded));
    options.timeout = stops.front().timeout;
    Communicator comm = Communicator::create(bootstrap, options);
    for (std::size_t i = 0; i < stops.size(); ++i) {
      SCOPED_TRACE(text_of(stops[i]) + ", on rank " + std::to_string(bootstrap.rank));
      ++here[i];
      while (here[i] < kRanks) std::this_thread::sleep_for(milliseconds(1));
      Rank(stops[i], bootstrap.rank, comm, shared[i]).live();
    }
  });
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const bool before =
        stops[i].when == When::before_dispatch || stops[i].when == When::before_combine;
    EXPECT_TRUE(shared[i].resumed) << text_of(stops[i]);
    EXPECT_GE(shared[i].told, before ? kRanks - 1 : 0) << text_of(stops[i]);
  }
}

TEST(StoppedRankTest, ThreeSecondsAgainstOne) {
  run_stops({{kWays[4], When::before_dispatch, 2, milliseconds(3000), milliseconds(1000)}});
}

class StoppedWaysTest : public testing::TestWithParam<When> {};

TEST_P(StoppedWaysTest, AreNamedAndGoneOnFrom) {
  std::vector<Stop> stops;
  for (const Way& way : kWays) {
    stops.push_back({way, GetParam(), static_cast<int>(stops.size()) % kRanks, milliseconds(260),
                     milliseconds(100)});
  }
  run_stops(stops);
}

struct MomentName {
  template <class Info>
  std::string operator()(const Info& instance) const {
    const char* const names[] = {"BeforeDispatch", "InDispatch", "BeforeCombine", "InCombine"};
    return names[static_cast<int>(instance.param)];
  }
};

INSTANTIATE_TEST_SUITE_P(Moments, StoppedWaysTest, testing::ValuesIn(kWhen), MomentName());

}  // namespace
}  // namespace ubep::test
