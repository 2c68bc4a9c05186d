// Shows in the own segment what this rank has been waiting for, for `ubep ps`.
//
// Any lane; only once a wait has lasted, and not often: nothing of it is on the fast path but a
// look at a private word.
#pragma once

#include <chrono>
#include <cstdint>

#include "fabric/shm/fabric.hpp"
#include "memory/word.hpp"

namespace ubep {

class WaitNotice {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kAfter{20};
  static constexpr std::chrono::milliseconds kEvery{50};

  // At each look of a wait. `describe` returns the Status that is shown, once it has lasted
  // `after`.
  template <class Describe>
  void show(ShmFabric& fabric, Describe describe, std::chrono::milliseconds after = kAfter) {
    // claims: the times and the shown words, of whoever showed last; others come again.
    if (!state_.try_claim(kNothing, kBusy) && !state_.try_claim(kWaiting, kBusy)) return;
    const auto now = Clock::now();
    if (since_ == Clock::time_point{}) {
      since_ = now;
      next_ = now + after;
    }
    if (now >= next_) {
      fabric.show_wait({.since_ns = ns_of(since_), .looked_ns = ns_of(now), .status = describe()});
      shown_ = true;
      next_ = now + kEvery;
    }
    state_.store_release(kWaiting);  // publishes: the times, to the next that claims
  }

  // acquires: nothing; whether a wait is noted.
  bool waits() const { return state_.load_acquire() != kNothing; }

  // The wait is over.
  void clear(ShmFabric& fabric) {
    // acquires: nothing; the claim does.
    if (state_.load_acquire() == kNothing) return;
    if (!state_.try_claim(kWaiting, kBusy)) return;  // claims: as in show()
    since_ = {};
    if (shown_) fabric.show_wait({});
    shown_ = false;
    state_.store_release(kNothing);  // publishes: the times, to the next that claims
  }

 private:
  static std::uint64_t ns_of(Clock::time_point time) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
  }

  enum : std::uint64_t { kNothing, kWaiting, kBusy };
  LaneWord state_{kNothing};
  Clock::time_point since_;
  Clock::time_point next_;
  bool shown_ = false;
};

}  // namespace ubep
