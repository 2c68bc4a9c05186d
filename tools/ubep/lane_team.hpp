// Helper threads that step a communicator while its rank waits: lanes 1..n-1 of a rank.
//
// Purpose: `--lanes`; stands for an inference engine's OpenMP threads, which stay awake between
// regions and sleep after a while. They yield, for there may be more of them than cores.
// Not for: the library, which starts no threads.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ubep/ubep.hpp"

namespace ubep::tools {

class LaneTeam {
 public:
  explicit LaneTeam(int most_lanes) {
    for (int lane = 1; lane < most_lanes; ++lane) {
      threads_.emplace_back([this, lane] { help(lane); });
    }
  }
  ~LaneTeam() {
    lanes_.store(kStop);
    lanes_.notify_all();
    open_.store(1);
    open_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  LaneTeam(const LaneTeam&) = delete;
  LaneTeam& operator=(const LaneTeam&) = delete;

  // From now on so many lanes step `comm`, which must outlive the team; the others sleep.
  void use(Communicator& comm, int lanes) {
    comm_.store(&comm);
    lanes_.store(lanes);
    lanes_.notify_all();
  }

  // Waits for the handle's operation with all lanes in use. They have left step() when it returns.
  Status wait(Handle& handle) {
    open_.store(1);
    open_.notify_all();
    const Status status = comm_.load()->wait(handle);
    open_.store(0);
    while (inside_.load() != 0) sched_yield();
    return status;
  }

 private:
  static constexpr int kStop = -1;
  static constexpr int kYields = 64;      // before a helper sleeps between operations
  static constexpr int kFruitless = 256;  // steps before it naps in one
  static constexpr long kNapNs = 50'000;

  void help(int lane) {
    int fruitless = 0;
    for (;;) {
      const int lanes = lanes_.load();
      if (lanes == kStop) return;
      if (lane >= lanes) {
        lanes_.wait(lanes);
        continue;
      }
      const bool open = open_.load() != 0;
      if (open && step(lane) > 0) {
        fruitless = 0;
      } else if (++fruitless > (open ? kFruitless : kYields)) {
        rest(open);
        fruitless = 0;
        continue;
      }
      sched_yield();
    }
  }

  // wait() returns when nobody is inside, and only then is the team handed on: who is inside and
  // sees it open sees the communicator and the lanes of that operation.
  int step(int lane) {
    inside_.fetch_add(1);
    int done = 0;
    if (open_.load() != 0) {
      const int lanes = lanes_.load();
      if (lane < lanes) done = comm_.load()->step(lane, lanes);
    }
    inside_.fetch_sub(1);
    return done;
  }

  void rest(bool open) {
    if (!open) return open_.wait(0);
    const timespec pause{0, kNapNs};
    nanosleep(&pause, nullptr);
  }

  std::atomic<Communicator*> comm_{nullptr};
  std::atomic<int> lanes_{1};
  std::atomic<int> open_{0};
  std::atomic<int> inside_{0};
  std::vector<std::thread> threads_;
};

}  // namespace ubep::tools
