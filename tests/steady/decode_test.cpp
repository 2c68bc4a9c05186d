// Decode steps that have reached their steady state allocate nothing, take no lock and call no
// kernel. Waits longer than the waiter spins are yields: such steps are told apart, and may call
// the kernel from the waiter and nowhere else.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/waiter.hpp"
#include "steady/watch.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

constexpr int kRanks = 2;
constexpr int kSets = 7;  // routings in turn: odd, so that each meets both slots
constexpr int kWarmUp = 4 * kSets;
constexpr int kRound = 60;    // steps between two looks at whether there were enough
constexpr int kRounds = 14;   // of a communicator; dispatch 1024 would measure the placement again
constexpr int kTries = 20;    // communicators one after the other
constexpr int kWanted = 100;  // steps of each rank without a long wait
static_assert(kWarmUp + kRound * kRounds < 1024);

struct Way {
  Layout layout;
  Path path;
  Store store = Store::near;
  std::array<int, kRanks> tokens = {32, 32};
  Reduction reduction = Reduction::automatic;
  Weighting weighting = Weighting::kernel;
  bool topk1 = false;
  bool cached = false;
};

std::string way_name(const testing::TestParamInfo<Way>& info) {
  const Way& way = info.param;
  std::string text = fmt::format("{}_{}_{}", name(way.path), name(way.layout), name(way.store));
  for (const int tokens : way.tokens) text += fmt::format("_{}", tokens);
  if (way.reduction == Reduction::per_rank) text += "_per_rank";
  if (way.weighting == Weighting::owner) text += "_owner";
  if (way.topk1) text += "_topk1";
  if (way.cached) text += "_cached";
  return text;
}

// One rank's decode loop: everything that it touches is there before the first step.
class Decoder {
 public:
  Decoder(const Way& way, const Bootstrap& bootstrap) : way_(way) {
    const auto self = static_cast<std::size_t>(bootstrap.rank);
    Problem problem;
    for (int set = 0; set < kSets; ++set) {
      problem = make_problem({.ranks = kRanks,
                              .experts_per_rank = 8,
                              .tokens = *std::max_element(way.tokens.begin(), way.tokens.end()),
                              .hidden = 512,
                              .topk = 4,
                              .layout = way.layout,
                              .seed = 1 + static_cast<std::uint64_t>(set)});
      RankInput input = problem.ranks[self];
      input.tokens = way.tokens[self];
      input.topk_idx.resize(static_cast<std::size_t>(input.tokens * problem.topk));
      input.topk_weights.resize(input.topk_idx.size());
      inputs_.push_back(std::move(input));
    }
    hidden_ = problem.hidden;
    topk_ = problem.topk;
    CommunicatorOptions options = options_for(problem);
    options.store = way.store;
    comm_ = std::make_unique<Communicator>(Communicator::create(bootstrap, options));
    out_.resize(inputs_[0].x.size());
    options_ = {.layout = way.layout,
                .path = way.path,
                .reduction = way.reduction,
                .weighting = way.weighting,
                .topk1 = way.topk1};
  }

  // Whether all went well.
  bool step(int number) {
    const bool repeats = way_.cached && number > 0;
    const RankInput& input = inputs_[way_.cached ? 0 : static_cast<std::size_t>(number % kSets)];
    const ConstRows x(input.x.data(), input.tokens, hidden_, DType::bf16);
    const Status dispatched =
        repeats
            ? comm_->dispatch(x, handle_, handle_)
            : comm_->dispatch(x, {input.topk_idx, input.topk_weights, topk_}, options_, handle_);
    if (!dispatched.ok()) return false;
    run_experts();
    const Rows out{out_.data(), input.tokens, hidden_, DType::bf16};
    return comm_->combine(handle_, {.out = out}).ok();
  }

 private:
  // Every output is the row that its expert was sent.
  void run_experts() {
    const Received& received = handle_.received();
    const Rows output = handle_.expert_output();
    const bool indirect = way_.weighting == Weighting::owner;
    for (std::int64_t i = 0; i < output.num_rows; ++i) {
      const auto row = indirect ? received.expert_rows[static_cast<std::size_t>(i)] : i;
      std::memcpy(output.row(i), received.row(row), static_cast<std::size_t>(output.row_bytes()));
    }
  }

  Way way_;
  std::vector<RankInput> inputs_;
  std::int64_t hidden_ = 0;
  int topk_ = 0;
  std::unique_ptr<Communicator> comm_;
  DispatchOptions options_;
  Handle handle_;
  std::vector<std::byte> out_;
};

// What the steps of one rank did, and how many waited no longer than the waiter spins.
struct Sum {
  int quiet = 0;
  std::uint64_t heap_calls = 0;
  std::uint64_t lock_calls = 0;
  std::uint64_t quiet_calls = 0;  // to the kernel, from anywhere in a quiet step
  std::uint64_t other_calls = 0;  // to the kernel in a step with a long wait, not from the waiter
  long last_call = -1;

  void add(const Watched& seen, bool clock_calls_kernel) {
    const bool is_quiet = seen.idle < Waiter::kSpins;
    const std::uint64_t clock_calls = clock_calls_kernel ? 0 : seen.clock_calls;
    heap_calls += seen.heap_calls;
    lock_calls += seen.lock_calls;
    if (is_quiet) {
      ++quiet;
      quiet_calls += seen.system_calls + seen.waiter_calls + clock_calls;
    } else if (!seen.look_advised) {
      other_calls += seen.system_calls;
    }
    if (seen.system_calls > 0) last_call = seen.last_call;
  }
};

bool clock_calls_kernel() {
  start_watching();
  (void)Waiter::Clock::now();
  return stop_watching().clock_calls > 0;
}

// Each rank on a CPU of its own: two on one would wait for each other in every step. Only once the
// communicator is there, which spins when it sees as many CPUs as ranks.
class Pinned {
 public:
  explicit Pinned(int rank) {
    sched_getaffinity(0, sizeof(all_), &all_);
    int cpu = -1;
    for (int left = rank; left >= 0; --left) {
      do ++cpu;
      while (!CPU_ISSET(static_cast<std::size_t>(cpu), &all_));
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(cpu), &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~Pinned() { sched_setaffinity(0, sizeof(all_), &all_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t all_;
};

// Where the ranks meet after each round, and whether they have seen enough.
class Rounds {
 public:
  Rounds() : quiet_(kRanks) {
    for (int i = 0; i < kTries * kRounds; ++i) gates_.push_back(std::make_unique<Gate>(kRanks));
  }
  bool enough(int rank, int round, int quiet) const {
    quiet_[rank] = quiet;
    gates_[static_cast<std::size_t>(round)]->arrive_and_wait();
    return quiet_[0] >= kWanted && quiet_[1] >= kWanted;
  }

 private:
  SharedArray<int> quiet_;
  std::vector<std::unique_ptr<Gate>> gates_;
};

void watch_steps(const Bootstrap& bootstrap, const Way& way, const Rounds& rounds, Sum& sum) {
  const bool slow_clock = clock_calls_kernel();
  bool enough = false;
  for (int round = 0; !enough && round < kTries * kRounds;) {
    Decoder decoder(way, bootstrap);
    const Pinned pinned(bootstrap.rank);
    int number = 0;
    while (number < kWarmUp) ASSERT_TRUE(decoder.step(number++));
    do {
      for (int i = 0; i < kRound; ++i) {
        start_watching();
        const bool good = decoder.step(number++);
        sum.add(stop_watching(), slow_clock);
        ASSERT_TRUE(good);
      }
      enough = rounds.enough(bootstrap.rank, round++, sum.quiet);
    } while (!enough && round % kRounds != 0);
  }
}

class DecodeTest : public testing::TestWithParam<Way> {};

TEST_P(DecodeTest, AllocatesNothingTakesNoLockAndCallsNoKernel) {
  if (ranks_per_cpu(kRanks) > 1) GTEST_SKIP() << "more ranks than CPUs: every wait yields";
  const Rounds rounds;
  run_ranks(RankKind::processes, kRanks, [&](const Bootstrap& bootstrap) {
    if (!trap_system_calls()) std::puts("no trap for system calls here: they are not counted");
    Sum sum;
    watch_steps(bootstrap, GetParam(), rounds, sum);
    EXPECT_EQ(sum.heap_calls, 0U);
    EXPECT_EQ(sum.lock_calls, 0U);
    EXPECT_EQ(sum.quiet_calls, 0U) << "in steps without a long wait; the last: " << sum.last_call;
    EXPECT_EQ(sum.other_calls, 0U) << "not by the waiter; the last: " << sum.last_call;
    EXPECT_GE(sum.quiet, kWanted) << "all other steps had a long wait: a busy machine?";
  });
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Store store : {Store::near, Store::far}) {
    for (const std::array<int, kRanks>& tokens : {std::array{1, 1}, {32, 32}, {32, 0}}) {
      for (const Path path : {Path::read, Path::pull, Path::push}) {
        ways.push_back({Layout::rank_major, path, store, tokens});
      }
      for (const Path path : {Path::pull, Path::push}) {
        ways.push_back({Layout::expert_major, path, store, tokens});
      }
    }
  }
  ways.push_back({.layout = Layout::rank_major, .path = Path::read, .weighting = Weighting::owner});
  ways.push_back({.layout = Layout::rank_major, .path = Path::pull, .topk1 = true});
  for (const Path path : {Path::pull, Path::push}) {
    ways.push_back(
        {.layout = Layout::expert_major, .path = path, .reduction = Reduction::per_rank});
    ways.push_back({.layout = Layout::expert_major, .path = path, .cached = true});
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Ways, DecodeTest, testing::ValuesIn(all_ways()), way_name);

// Each counter sees what it is there for.
TEST(WatchTest, SeesTheHeapLocksAndSystemCalls) {
  run_ranks(RankKind::processes, 1, [&](const Bootstrap&) {
    const bool trapped = trap_system_calls();
    std::mutex mutex;
    start_watching();
    const Watched nothing = stop_watching();
    start_watching();
    int* const volatile number = new int(1);
    delete number;
    const Watched heap = stop_watching();
    start_watching();
    mutex.lock();
    const Watched lock = stop_watching();
    mutex.unlock();
    start_watching();
    (void)getppid();
    const Watched call = stop_watching();
    Crowd crowd;
    Waiter waiter(false, Waiter::Clock::now() + std::chrono::seconds(30), crowd);
    start_watching();
    (void)waiter.idle();
    const Watched yield = stop_watching();
    EXPECT_EQ(nothing.heap_calls + nothing.lock_calls + nothing.system_calls, 0U);
    EXPECT_EQ(heap.heap_calls, 2U);
    EXPECT_EQ(heap.lock_calls + heap.system_calls, 0U);
    EXPECT_EQ(lock.lock_calls, 1U);
    EXPECT_EQ(lock.heap_calls + lock.system_calls, 0U);
    EXPECT_EQ(yield.idle, 1U);
    EXPECT_EQ(yield.system_calls, 0U);
    if (!trapped) GTEST_SKIP() << "no trap for system calls here";
    EXPECT_EQ(call.system_calls, 1U);
    EXPECT_EQ(call.last_call, SYS_getppid);
    EXPECT_EQ(getppid(), static_cast<pid_t>(syscall(SYS_getppid)));  // they are still made
    EXPECT_EQ(yield.waiter_calls, 1U);
  });
}

}  // namespace
}  // namespace ubep::test
