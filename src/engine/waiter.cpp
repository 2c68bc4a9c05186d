#include "engine/waiter.hpp"

#include <sched.h>

#include <algorithm>
#include <ctime>

#include "memory/word.hpp"

namespace ubep {
namespace {

constexpr int kCallsPerClock = 16;
constexpr auto kLookAfter = std::chrono::milliseconds(1);
constexpr auto kSleepAfter = std::chrono::milliseconds(10);
constexpr long kSleepNs = 100'000;

// A yield lets each other rank on this CPU go on until it waits, too, and ranks have about the same
// to do. What takes so much longer went to somebody else who computes.
constexpr auto kLongYield = std::chrono::milliseconds(1);
constexpr int kMostNaps = 256;
constexpr long kNapNs = 50'000;

void nap(long ns) {
  const timespec pause{0, ns};
  nanosleep(&pause, nullptr);
}

}  // namespace

Waiter::Advice Waiter::idle() {
  ++idle_calls_;
  if (spin_ && idle_calls_ < kSpins) {
    cpu_relax();
    return Advice::again;
  }
  const int calls = idle_calls_ - (spin_ ? kSpins : 1);
  give_way();
  if (calls % kCallsPerClock != 0) return Advice::again;
  const auto now = Clock::now();
  if (calls == 0) {
    idle_since_ = now;
    next_look_ = now + kLookAfter;
  }
  if (now >= deadline_) return Advice::expired;
  if (now - idle_since_ > kSleepAfter) nap(kSleepNs);
  if (now < next_look_) return Advice::again;
  next_look_ = now + kLookAfter;
  return Advice::look_for_losses;
}

// Among ranks that wait for one another a yield is the fastest way. Beside others it is the
// slowest: who yields goes behind all that compute, for a whole time slice of theirs, and was seen
// to get less of the CPU than is its due (Linux 6.18). Who sleeps comes back when it wakes.
void Waiter::give_way() {
  const auto before = Clock::now();
  if (crowd_.back != Clock::time_point{}) {
    crowd_.worked = std::max(before - crowd_.back, crowd_.worked * 7 / 8);
  }
  if (crowd_.naps > 0) {
    --crowd_.naps;
    nap(kNapNs);
    crowd_.back = Clock::now();
    return;
  }
  sched_yield();
  crowd_.back = Clock::now();
  if (crowd_.back - before <= kLongYield + crowd_.worked * crowd_.ranks_per_cpu) {
    crowd_.next_naps = std::max(crowd_.next_naps - 1, Crowd::kFewNaps);
    return;
  }
  crowd_.naps = crowd_.next_naps;
  crowd_.next_naps = std::min(2 * crowd_.next_naps, kMostNaps);
}

int ranks_per_cpu(int ranks) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return ranks;
  const int cpus = CPU_COUNT(&set);
  return (ranks + cpus - 1) / cpus;
}

}  // namespace ubep
