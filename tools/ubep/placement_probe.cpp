// The placement probe of machine.hpp: two pinned children and one shared page.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <new>

#include "tools/ubep/machine.hpp"

namespace ubep::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kNumBlocks = 5;
constexpr int kBatchesPerBlock = 20;
constexpr int kRoundTripsPerBatch = 100;
constexpr int kWarmUpRoundTrips = 500;
constexpr int kLoopSteps = 100'000;
constexpr milliseconds kChildDeadline{80};
constexpr milliseconds kParentDeadline{90};
constexpr double kMaxSmtFlagNs = 40;
constexpr double kMinFarFlagNs = 120;
constexpr double kMinSmtSlowdown = 1.5;

// One flag on a line of its own (two lines: some CPUs fetch pairs). All accesses are sequentially
// consistent: measured no slower than release and acquire, since each store is waited for anyway.
struct alignas(128) Flag {
  std::atomic<std::uint32_t> value{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

struct Block {
  double flag_one_way_ns = 0;
  double slowdown = 0;
};

// The page that the children share. Each flag has one writer, the child of that index.
struct Page {
  std::array<Flag, 2> flags;
  std::array<Flag, 2> done;                             // 1: all blocks finished
  std::array<std::array<Block, kNumBlocks>, 2> blocks;  // [child], read after `done`
};
static_assert(sizeof(Page) <= 4096);

// What a child knows. Steps are numbered alike on both sides; a step's number is the flag's value.
struct Child {
  Page& page;
  std::size_t index;
  Clock::time_point deadline;
  std::uint32_t step = 0;
};

void signal(Child& child, std::uint32_t step) { child.page.flags[child.index].value.store(step); }

// Spins until the other child has reached `step`. A child past its deadline ends at once.
void wait(const Child& child, std::uint32_t step) {
  const std::atomic<std::uint32_t>& flag = child.page.flags[1 - child.index].value;
  for (std::uint32_t spins = 1; flag.load() < step; ++spins) {
    if (spins % 4096 == 0 && Clock::now() > child.deadline) ::_exit(1);
  }
}

void meet(Child& child) {
  ++child.step;
  signal(child, child.step);
  wait(child, child.step);
}

// Child 0 serves, child 1 returns; both advance by `count` steps.
void ping_pong(Child& child, int count) {
  for (int i = 0; i < count; ++i) {
    ++child.step;
    if (child.index == 0) signal(child, child.step);
    wait(child, child.step);
    if (child.index == 1) signal(child, child.step);
  }
}

double cpu_seconds() {
  std::timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// CPU time of a loop that fills the multiplier (eight chains that do not wait for one another), so
// that a second thread on the same core slows it. CPU time, so that other processes do not.
double time_loop() {
  std::array<std::uint64_t, 8> chains = {1, 3, 5, 7, 9, 11, 13, 15};
  const double start = cpu_seconds();
  for (int i = 0; i < kLoopSteps; ++i) {
    for (std::uint64_t& chain : chains) chain = chain * 0x9e3779b97f4a7c15U + 1;
  }
  const double elapsed = cpu_seconds() - start;
  std::uint64_t sum = 0;
  for (const std::uint64_t chain : chains) sum += chain;
  volatile std::uint64_t sink = sum;  // keeps the loop from being optimised away
  (void)sink;
  return elapsed;
}

template <std::size_t size>
double median(std::array<double, size> values) {
  std::sort(values.begin(), values.end());
  return values[size / 2];
}

Block measure_block(Child& child) {
  Block block;
  meet(child);
  const double alone = child.index == 0 ? time_loop() : 0;
  meet(child);
  const double together = time_loop();
  block.slowdown = child.index == 0 ? together / alone : 0;
  meet(child);
  std::array<double, kBatchesPerBlock> batches = {};  // a preemption spoils one batch, not all
  for (double& one_way_ns : batches) {
    const Clock::time_point start = Clock::now();
    ping_pong(child, kRoundTripsPerBatch);
    const std::chrono::duration<double, std::nano> elapsed = Clock::now() - start;
    one_way_ns = elapsed.count() / (2 * kRoundTripsPerBatch);
  }
  block.flag_one_way_ns = median(batches);
  return block;
}

[[noreturn]] void run_child(Child child, int cpu, ::pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) ::_exit(1);
  ping_pong(child, kWarmUpRoundTrips);
  for (Block& block : child.page.blocks[child.index]) block = measure_block(child);
  // publishes: the blocks, to `probe_placement`.
  child.page.done[child.index].value.store(1);
  ::_exit(0);
}

// Waits for a child; kills it at the deadline.
void reap(::pid_t pid, Clock::time_point deadline) {
  for (;;) {
    const ::pid_t ended = ::waitpid(pid, nullptr, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) return;
    if (Clock::now() > deadline) break;
    const std::timespec pause = {0, 500'000};
    ::nanosleep(&pause, nullptr);
  }
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Placement classify(const Block& block) {
  if (block.flag_one_way_ns < kMaxSmtFlagNs || block.slowdown > kMinSmtSlowdown)
    return Placement::smt;
  return block.flag_one_way_ns < kMinFarFlagNs ? Placement::near : Placement::far;
}

PlacementProbe judge(const std::array<Block, kNumBlocks>& blocks) {
  std::array<double, kNumBlocks> flags = {};
  std::array<double, kNumBlocks> slowdowns = {};
  Placement placement = classify(blocks[0]);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    flags[i] = blocks[i].flag_one_way_ns;
    slowdowns[i] = blocks[i].slowdown;
    if (classify(blocks[i]) != classify(blocks[0])) placement = Placement::mixed;
  }
  return {placement, median(flags), median(slowdowns)};
}

}  // namespace

PlacementProbe probe_placement(int first_cpu, int second_cpu) {
  const std::array cpus = {first_cpu, second_cpu};
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return {};
  }
  if (first_cpu == second_cpu) return {};
  void* const memory =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  Page& page = *new (memory) Page;

  const Clock::time_point start = Clock::now();
  const ::pid_t parent = ::getpid();
  std::array<::pid_t, 2> pids = {-1, -1};
  for (std::size_t i = 0; i < pids.size(); ++i) {
    pids[i] = ::fork();
    if (pids[i] < 0) break;
    if (pids[i] == 0) run_child(Child{page, i, start + kChildDeadline}, cpus[i], parent);
  }
  if (pids[0] > 0 && pids[1] < 0) ::kill(pids[0], SIGKILL);  // nobody to play with
  for (const ::pid_t pid : pids) {
    if (pid > 0) reap(pid, start + kParentDeadline);
  }
  bool done = true;
  // acquires: the blocks, from the end of `run_child`.
  for (const Flag& flag : page.done) done = done && flag.value.load() == 1;
  const PlacementProbe probe = done ? judge(page.blocks[0]) : PlacementProbe{};
  ::munmap(memory, sizeof(Page));
  return probe;
}

}  // namespace ubep::tools
