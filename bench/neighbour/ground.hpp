// Memory that the ranks and the foreign process share, beside the library: orders and times.
//
// Whoever waits here sleeps: the neighbours are measured meanwhile.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
#include <span>
#include <stdexcept>
#include <thread>

#include "tools/ubep/clock.hpp"

namespace ubep::bench {

inline constexpr int kMostRanks = 16;
inline constexpr int kMostTimes = 8192;  // of a rank in one segment of the schedule

using tools::cpu_seconds;
using tools::now;

// How the ranks exchange, and who is beside them.
enum Segment { one_lane, all_lanes, one_lane_beside, all_lanes_beside, num_segments };
inline constexpr int kForeignAlone = num_segments;  // a segment of the foreign process only

struct Times {  // seconds
  std::array<double, kMostTimes> cycle;
  std::array<double, kMostTimes> dispatch;
  std::array<double, kMostTimes> combine;
  int count = 0;
  double wall = 0;
  double cpu = 0;

  std::span<const double> of(const std::array<double, kMostTimes>& list) const {
    return {list.data(), static_cast<std::size_t>(count)};
  }
};

struct ForeignSteps {
  double seconds = 0;
  double steps = 0;
};

struct Ground {
  enum : int { kSleep = -1, kEnd = -2 };
  std::atomic<int> foreign{kSleep};  // or the segment that it works beside
  std::atomic<int> foreign_asleep{1};
  std::array<ForeignSteps, num_segments + 1> steps;
  std::array<std::array<Times, num_segments>, kMostRanks> times;
  std::atomic<int> arrived{0};
  std::atomic<int> meetings{0};

  static Ground& make() {
    void* area = mmap(nullptr, sizeof(Ground), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED) throw std::bad_alloc();
    return *new (area) Ground;
  }
  static void unmake(Ground& ground) { munmap(&ground, sizeof(Ground)); }

  void meet(int ranks) {
    const int meeting = meetings.load();
    if (arrived.fetch_add(1) + 1 == ranks) {
      arrived.store(0);
      meetings.store(meeting + 1);
      return;
    }
    sleep_until([&] { return meetings.load() != meeting; });
  }

  template <class Condition>
  static void sleep_until(Condition condition) {
    const double deadline = now() + 60;
    while (!condition()) {
      if (now() > deadline) throw std::runtime_error("a rank or the foreign process does not come");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
};

}  // namespace ubep::bench
