#include "sim/event_queue.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace ubep::sim {
namespace {

// Notes when which event came; and may do something then.
class Recorder final : public Agent {
 public:
  explicit Recorder(EventQueue& queue) : queue_(queue) {}
  void on_event(std::uint64_t token) override {
    seen.emplace_back(queue_.now(), token);
    if (then) then(token);
  }

  std::vector<std::pair<Time, std::uint64_t>> seen;
  std::function<void(std::uint64_t)> then;

 private:
  EventQueue& queue_;
};

using Seen = std::vector<std::pair<Time, std::uint64_t>>;

class EventQueueTest : public testing::Test {
 protected:
  EventQueue queue_;
  Recorder recorder_{queue_};
};

TEST_F(EventQueueTest, RunsByTime) {
  queue_.at(30, recorder_, 3);
  queue_.at(10, recorder_, 1);
  queue_.at(20, recorder_, 2);
  EXPECT_EQ(queue_.next(), 10U);
  EXPECT_EQ(queue_.now(), 0U);
  while (queue_.run_next()) {
  }
  EXPECT_EQ(recorder_.seen, (Seen{{10, 1}, {20, 2}, {30, 3}}));
  EXPECT_EQ(queue_.now(), 30U);
  EXPECT_EQ(queue_.count(), 3U);
  EXPECT_EQ(queue_.next(), kNever);
}

TEST_F(EventQueueTest, TiesRunInTheOrderInWhichTheyWereAdded) {
  constexpr std::uint64_t kEvents = 1000;
  Seen expected;
  for (std::uint64_t i = 0; i < kEvents; ++i) {
    queue_.at(i % 3, recorder_, i);
  }
  for (std::uint64_t time = 0; time < 3; ++time) {
    for (std::uint64_t i = time; i < kEvents; i += 3) expected.emplace_back(time, i);
  }
  while (queue_.run_next()) {
  }
  EXPECT_EQ(recorder_.seen, expected);
}

TEST_F(EventQueueTest, AnEventCanAddOthersAtItsOwnTimeAndNoneInThePast) {
  recorder_.then = [&](std::uint64_t token) {
    if (token != 1) return;
    queue_.at(10, recorder_, 3);
    queue_.at(4, recorder_, 4);  // is late: comes now
  };
  queue_.at(10, recorder_, 1);
  queue_.at(10, recorder_, 2);
  while (queue_.run_next()) {
  }
  EXPECT_EQ(recorder_.seen, (Seen{{10, 1}, {10, 2}, {10, 3}, {10, 4}}));
}

TEST_F(EventQueueTest, SkipsToATimeBeforeAllEventsAndToNoOther) {
  EXPECT_TRUE(queue_.skip_to(5));
  EXPECT_EQ(queue_.now(), 5U);
  EXPECT_EQ(queue_.count(), 1U);
  queue_.at(20, recorder_, 1);
  EXPECT_TRUE(queue_.skip_to(19));
  EXPECT_FALSE(queue_.skip_to(20));  // the event comes first
  EXPECT_FALSE(queue_.skip_to(21));
  EXPECT_EQ(queue_.now(), 19U);
  EXPECT_EQ(queue_.count(), 2U);
  EXPECT_TRUE(queue_.run_next());
  EXPECT_EQ(queue_.count(), 3U);
}

TEST_F(EventQueueTest, TimeNeverGoesBack) {
  EXPECT_TRUE(queue_.skip_to(100));
  EXPECT_TRUE(queue_.skip_to(50));
  EXPECT_EQ(queue_.now(), 100U);
}

TEST_F(EventQueueTest, AnEmptyQueueRunsNothing) {
  EXPECT_FALSE(queue_.run_next());
  EXPECT_EQ(queue_.count(), 0U);
}

}  // namespace
}  // namespace ubep::sim
