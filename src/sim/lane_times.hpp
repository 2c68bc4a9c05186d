// What the lanes of one rank spent virtual time on, in each part of a layer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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

// What a lane did without a break.
struct LaneSlice {
  int rank = 0;
  int lane = 0;
  Activity activity = Activity::idle;
  Time begin = 0;
  Time end = 0;
};

class LaneTracer final : public Tracer {
 public:
  // `slices` (null: nobody wants them) gets those of all lanes, in the order of their begin within
  // a lane.
  LaneTracer(World& world, int rank, int lanes, std::vector<LaneSlice>* slices)
      : world_(world),
        rank_(rank),
        slices_(slices),
        lanes_(static_cast<std::size_t>(lanes)),
        since_(lanes_.size()),
        latest_(lanes_.size(), Activity::idle),
        slice_(lanes_.size(), kNone) {}

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
    if (slices_ != nullptr && now > since_[lane]) keep(lane, activity, now);
    since_[lane] = now;
  }
  // The lane goes on with what it did, or with something else.
  void keep(std::size_t lane, Activity activity, Time now) {
    if (slice_[lane] != kNone) {
      LaneSlice& last = (*slices_)[slice_[lane]];
      if (last.activity == activity && last.end == since_[lane]) {
        last.end = now;
        return;
      }
    }
    slice_[lane] = slices_->size();
    slices_->push_back({rank_, static_cast<int>(lane), activity, since_[lane], now});
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  World& world_;
  int rank_;
  std::vector<LaneSlice>* slices_;
  std::vector<LaneTimes> lanes_;
  std::vector<Time> since_;
  std::vector<Activity> latest_;
  std::vector<std::size_t> slice_;  // the newest of each lane
  Time begin_ = 0;
};

}  // namespace ubep::sim
