// Helper threads that step a communicator while its rank waits: lanes 1..n-1 of a rank.
//
// Purpose: `--lanes`; stands for an inference engine's OpenMP threads, which also stay awake.
// Not for: the library, which starts no threads.
#pragma once

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ubep/ubep.hpp"

namespace ubep::tools {

class LaneTeam {
 public:
  LaneTeam(Communicator& comm, int lanes) {
    for (int lane = 1; lane < lanes; ++lane) {
      threads_.emplace_back([this, &comm, lane, lanes] { help(comm, lane, lanes); });
    }
  }
  ~LaneTeam() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }
  LaneTeam(const LaneTeam&) = delete;
  LaneTeam& operator=(const LaneTeam&) = delete;

  // Waits for the handle's operation with all lanes.
  Status wait(Communicator& comm, Handle& handle) {
    open_.store(true);
    const Status status = comm.wait(handle);
    open_.store(false);
    while (inside_.load() != 0) sched_yield();
    return status;
  }

 private:
  void help(Communicator& comm, int lane, int lanes) {
    while (!stop_.load()) {
      inside_.fetch_add(1);
      if (open_.load()) comm.step(lane, lanes);
      inside_.fetch_sub(1);
      sched_yield();
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<bool> open_{false};
  std::atomic<int> inside_{0};
  std::vector<std::thread> threads_;
};

}  // namespace ubep::tools
