#include "engine/waiter.hpp"

#include <sched.h>

#include <ctime>

#include "memory/word.hpp"

namespace ubep {
namespace {

constexpr int kCallsPerClock = 16;
constexpr auto kLookAfter = std::chrono::milliseconds(1);
constexpr auto kSleepAfter = std::chrono::milliseconds(10);
constexpr long kSleepNs = 100'000;

}  // namespace

Waiter::Advice Waiter::idle() {
  ++idle_calls_;
  if (spin_ && idle_calls_ < kSpins) {
    cpu_relax();
    return Advice::again;
  }
  const int yields = idle_calls_ - (spin_ ? kSpins : 1);
  sched_yield();
  if (yields % kCallsPerClock != 0) return Advice::again;
  const auto now = Clock::now();
  if (yields == 0) {
    idle_since_ = now;
    next_look_ = now + kLookAfter;
  }
  if (now >= deadline_) return Advice::expired;
  if (now - idle_since_ > kSleepAfter) {
    const timespec pause{0, kSleepNs};
    nanosleep(&pause, nullptr);
  }
  if (now < next_look_) return Advice::again;
  next_look_ = now + kLookAfter;
  return Advice::look_for_losses;
}

bool may_spin(int ranks) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) >= ranks;
}

}  // namespace ubep
