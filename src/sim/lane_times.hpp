// What the lanes of one rank spent virtual time on, in each part of a layer.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "sim/world.hpp"
#include "ubep/trace.hpp"

namespace ubep::sim {

// Of one lane in one part.
struct LaneTimes {
  std::array<Time, kActivities> spent = {};
  Time last_row = 0;  // when it had stored its last row for a peer, from the part's start

  Time of(Activity activity) const { return spent[static_cast<std::size_t>(activity)]; }
};

class LaneTracer final : public Tracer {
 public:
  LaneTracer(World& world, int lanes)
      : world_(world),
        lanes_(static_cast<std::size_t>(lanes)),
        since_(lanes_.size()),
        latest_(lanes_.size(), Activity::idle) {}

  void charge(int lane, Activity activity) override {
    const auto i = static_cast<std::size_t>(lane);
    latest_[i] = activity;
    add(i, activity);
    if (activity == Activity::send) lanes_[i].last_row = world_.now() - begin_;
  }
  // A part begins now, and time before it counts for nothing.
  void begin() {
    begin_ = world_.now();
    std::fill(since_.begin(), since_.end(), begin_);
    std::fill(lanes_.begin(), lanes_.end(), LaneTimes{});
    std::fill(latest_.begin(), latest_.end(), Activity::idle);
  }
  // It ends: who has not called since goes on waiting for what it waited for, or has nothing to do.
  std::vector<LaneTimes> end() {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const bool waits = latest_[i] >= Activity::wait_flag;
      add(i, waits ? latest_[i] : Activity::idle);
    }
    return lanes_;
  }

 private:
  void add(std::size_t lane, Activity activity) {
    const Time now = world_.now();
    lanes_[lane].spent[static_cast<std::size_t>(activity)] += now - since_[lane];
    since_[lane] = now;
  }

  World& world_;
  std::vector<LaneTimes> lanes_;
  std::vector<Time> since_;
  std::vector<Activity> latest_;
  Time begin_ = 0;
};

}  // namespace ubep::sim
