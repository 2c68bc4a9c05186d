// How a caller waits while there is nothing to do: spin, then give the CPU up, then short sleeps.
// Never blocks on a peer, so a death or a deadline is always noticed.
#pragma once

#include <chrono>

namespace ubep {

// What one caller's waits remember of the others on its CPUs.
struct Crowd {
  using Clock = std::chrono::steady_clock;
  static constexpr int kFewNaps = 4;
  int ranks_per_cpu = 1;     // the caller's included
  int naps = 0;              // that are taken before the next yield
  int next_naps = kFewNaps;  // after it, if it is long again
  Clock::time_point back;    // when the CPU was given up the last time, and came back
  Clock::duration worked{};  // the longest stretch between, lately
};

class Waiter {
 public:
  using Clock = Crowd::Clock;
  static constexpr int kSpins = 500;  // calls of idle(), tens of us, before the CPU is given up

  // `spin`: at least as many CPUs as ranks. Otherwise whoever is awaited may need this very CPU,
  // and the first thing to do is to give it up.
  Waiter(bool spin, Clock::time_point deadline, Crowd& crowd)
      : spin_(spin), deadline_(deadline), crowd_(crowd) {}

  void busy() { idle_calls_ = 0; }

  enum class Advice { again, look_for_losses, expired };
  // Called when a step did nothing.
  Advice idle();

 private:
  void give_way();

  bool spin_;
  Clock::time_point deadline_;
  Crowd& crowd_;
  int idle_calls_ = 0;
  Clock::time_point idle_since_;
  Clock::time_point next_look_;
};

// How many of `ranks` share one of the CPUs this thread may run on. With 1 they may spin.
int ranks_per_cpu(int ranks);

}  // namespace ubep
