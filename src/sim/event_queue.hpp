// Virtual time: one queue of events, ties in the order in which they were added.
//
//   EventQueue queue;
//   queue.at(queue.now() + 500 * kNanosecond, agent, token);
//   while (queue.run_next()) {}
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ubep::sim {

using Time = std::uint64_t;  // picoseconds
inline constexpr Time kNanosecond = 1000;
inline constexpr Time kMicrosecond = 1000 * kNanosecond;

constexpr double us_of(Time time) { return static_cast<double>(time) / double{kMicrosecond}; }
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
    const Event event = {std::max(time, now_), added_++, &agent, token};
    std::size_t place = heap_.size();
    heap_.push_back(event);
    while (place != 0) {
      const std::size_t parent = (place - 1) / kChildren;
      if (!event.is_before(heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = event;
  }

  // False: nothing is left.
  bool run_next() {
    if (heap_.empty()) return false;
    const Event event = heap_.front();
    drop_first();
    // Agents lie anywhere: the next one comes into the cache while this one does its part.
    if (!heap_.empty()) __builtin_prefetch(heap_.front().agent);
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
    bool is_before(const Event& other) const {
      return time != other.time ? time < other.time : number < other.number;
    }
  };

  // Puts the last event in the place of the first, and then where it belongs.
  void drop_first() {
    const Event event = heap_.back();
    heap_.pop_back();
    const std::size_t size = heap_.size();
    if (size == 0) return;
    std::size_t place = 0;
    for (std::size_t child = 1; child < size; child = kChildren * place + 1) {
      std::size_t earliest = child;
      const std::size_t end = std::min(child + kChildren, size);
      for (++child; child < end; ++child) {
        if (heap_[child].is_before(heap_[earliest])) earliest = child;
      }
      if (!heap_[earliest].is_before(event)) break;
      heap_[place] = heap_[earliest];
      place = earliest;
    }
    heap_[place] = event;
  }

  static constexpr std::size_t kChildren = 4;  // half as deep as with two
  std::vector<Event> heap_;                    // the earliest on top
  Time now_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace ubep::sim
