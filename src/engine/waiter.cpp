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

// A yield that took longer went to somebody who computes; ranks give the CPU back sooner.
constexpr auto kLongYield = std::chrono::microseconds(200);
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
  if (crowd_.naps > 0) {
    --crowd_.naps;
    return nap(kNapNs);
  }
  const auto before = Clock::now();
  sched_yield();
  if (Clock::now() - before <= kLongYield) {
    crowd_.next_naps = std::max(crowd_.next_naps - 1, Crowd::kFewNaps);
    return;
  }
  crowd_.naps = crowd_.next_naps;
  crowd_.next_naps = std::min(2 * crowd_.next_naps, kMostNaps);
}

bool may_spin(int ranks) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) >= ranks;
}

}  // namespace ubep
