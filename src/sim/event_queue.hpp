// Virtual time: one queue of events, ties in the order in which they were added.
//
//   EventQueue queue;
//   queue.at(queue.now() + 500 * kNanosecond, agent, token);
//   while (queue.run_next()) {}
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace ubep::sim {

using Time = std::uint64_t;  // picoseconds
inline constexpr Time kNanosecond = 1000;
inline constexpr Time kMicrosecond = 1000 * kNanosecond;
inline constexpr Time kNever = std::numeric_limits<Time>::max();

// Whatever something can happen to.
class Agent {
 public:
  virtual void on_event(std::uint64_t token) = 0;

 protected:
  ~Agent() = default;
};

class EventQueue {
 public:
  Time now() const { return now_; }
  Time next() const { return heap_.empty() ? kNever : heap_.front().time; }
  // Events run so far.
  std::uint64_t count() const { return count_; }

  // `time` is not in the past. The agent must live until then.
  void at(Time time, Agent& agent, std::uint64_t token) {
    heap_.push_back({std::max(time, now_), added_++, &agent, token});
    std::push_heap(heap_.begin(), heap_.end());
  }

  // False: nothing is left.
  bool run_next() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end());
    const Event event = heap_.back();
    heap_.pop_back();
    now_ = event.time;
    ++count_;
    event.agent->on_event(event.token);
    return true;
  }

  // Goes on to `time` at once when no event lies before or at it: spares an event. Never goes back.
  bool skip_to(Time time) {
    if (next() <= time) return false;
    now_ = std::max(now_, time);
    ++count_;
    return true;
  }

 private:
  struct Event {
    Time time;
    std::uint64_t number;
    Agent* agent;
    std::uint64_t token;
    bool operator<(const Event& other) const {  // a max-heap: the earliest on top
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  std::vector<Event> heap_;
  Time now_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace ubep::sim
