// What the lanes of a rank spend real time on, phase by phase: sim/lane_times.hpp for threads.
//
// Purpose: the breakdown of `ubep bench --ablate`. Not for: times to report; a clock is read at
// every charge.
//
//   comm.set_tracer(&clock);
//   clock.begin(lanes);            // no lane is in step()
//   ... an operation; all lanes have left step() ...
//   Breakdown us = clock.end();
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "tools/ubep/breakdown.hpp"
#include "tools/ubep/clock.hpp"
#include "ubep/trace.hpp"

namespace ubep::tools {

// A lane writes its own element and no other, from step(); begin() and end() touch all of them
// while no lane is there. So whoever keeps the lanes out of step() also orders these accesses.
class LaneClock final : public Tracer {
 public:
  explicit LaneClock(int most_lanes, double (*clock)() = now)
      : clock_(clock), lanes_(static_cast<std::size_t>(most_lanes)) {}

  void charge(int lane, Activity activity) override {
    Lane& l = lanes_[static_cast<std::size_t>(lane)];
    l.latest = activity;
    l.add(activity, clock_());
    l.told = true;
    if (activity == Activity::send) l.last_row = l.since - begin_;
  }

  // What the rank itself did as lane 0, outside step().
  void started(Activity activity) { lanes_[0].add(activity, clock_()); }

  // A phase of lanes [0, lanes) begins now, and time before it counts for nothing.
  void begin(int lanes) {
    in_use_ = static_cast<std::size_t>(lanes);
    begin_ = clock_();
    for (std::size_t i = 0; i < in_use_; ++i) {
      lanes_[i].since = begin_;
      lanes_[i].last_row = 0;
      lanes_[i].spent = {};
      lanes_[i].latest = Activity::idle;
    }
  }

  // It ends now: who has not called since goes on waiting for what it waited for, asleep perhaps,
  // or has nothing to do. Microseconds of a lane, on average.
  Breakdown end() {
    const double at = clock_();
    for (std::size_t i = 0; i < in_use_; ++i) {
      Lane& lane = lanes_[i];
      lane.add(lane.latest >= Activity::wait_flag ? lane.latest : Activity::idle, at);
    }
    return average(in_use_, [this](std::size_t i) {
      std::array<double, kActivities> us = lanes_[i].spent;
      for (double& part : us) part *= 1e6;
      return std::pair(us, lanes_[i].last_row * 1e6);
    });
  }

  // Whether the library has ever told anything: it does not where it was built without tracing.
  bool told() const {
    for (const Lane& lane : lanes_) {
      if (lane.told) return true;
    }
    return false;
  }

 private:
  struct alignas(64) Lane {
    double since = 0;
    double last_row = 0;
    std::array<double, kActivities> spent = {};  // seconds
    bool told = false;
    Activity latest = Activity::idle;

    void add(Activity activity, double at) {
      spent[static_cast<std::size_t>(activity)] += at - since;
      since = at;
    }
  };

  double (*clock_)();
  std::vector<Lane> lanes_;
  std::size_t in_use_ = 0;
  double begin_ = 0;
};

}  // namespace ubep::tools
