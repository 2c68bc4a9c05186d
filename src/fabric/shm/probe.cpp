#include "fabric/shm/probe.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <span>

#include "memory/word.hpp"

namespace ubep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBatches = 32;
constexpr int kRoundsPerBatch = 20;

// Bounded by time, not by spins: the other side may have been moved off its CPU.
bool await(SharedWord word, std::uint64_t value, Clock::time_point deadline) {
  for (int spin = 1;; ++spin) {
    // acquires: the flag value itself; nothing else travels with the probe.
    if (word.load_acquire() == value) return true;
    if (spin % 1024 == 0 && Clock::now() > deadline) return false;
    cpu_relax();
  }
}

}  // namespace

int first_cpu() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) return cpu;
  }
  return -1;
}

int last_cpu_but(int not_this) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return -1;
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0; --cpu) {
    if (CPU_ISSET(cpu, &set) && cpu != not_this) return cpu;
  }
  return -1;
}

PinnedTo::PinnedTo(int cpu) : saved_(new cpu_set_t) {
  auto* saved = static_cast<cpu_set_t*>(saved_);
  sched_getaffinity(0, sizeof(cpu_set_t), saved);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof(one), &one);
}

PinnedTo::~PinnedTo() {
  auto* saved = static_cast<cpu_set_t*>(saved_);
  sched_setaffinity(0, sizeof(cpu_set_t), saved);
  delete saved;
}

double ping_pong_ns(std::byte* mine, const std::byte* theirs, const PingPong& game) {
  static_assert(kMostBatches * kRoundsPerBatch <= kFlagsPerProbe);
  const SharedWord my_word(mine);
  const SharedWord their_word(theirs);
  const auto deadline = Clock::now() + game.patience;
  std::array<double, kMostBatches> all{};
  const auto batch_ns = std::span(all).first(static_cast<std::size_t>(game.batches));
  std::uint64_t value = game.first;
  for (double& ns : batch_ns) {
    const auto begin = Clock::now();
    for (int round = 0; round < kRoundsPerBatch; ++round, ++value) {
      if (!game.starter && !await(their_word, value, deadline)) return 0;
      // publishes: the flag value itself, to the other side's await().
      my_word.store_release(value);
      if (game.starter && !await(their_word, value, deadline)) return 0;
    }
    ns = std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
         (2 * kRoundsPerBatch);
  }
  const auto median = batch_ns.begin() + game.batches / 2;
  std::nth_element(batch_ns.begin(), median, batch_ns.end());
  return *median;
}

Placement classify(double one_way_ns) {
  if (one_way_ns <= 0) return Placement::unknown;
  if (one_way_ns < 40) return Placement::smt;
  return one_way_ns < 120 ? Placement::near : Placement::far;
}

}  // namespace ubep
