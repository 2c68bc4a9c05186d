#include "sim/fifo.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "sim/random.hpp"

namespace ubep::sim {
namespace {

TEST(FifoTest, IsWhatADequeIs) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    Fifo<int> fifo;
    std::deque<int> expected;
    const std::uint64_t bias = 2 + random.up_to(4);
    for (int i = 0; i < 400; ++i) {
      const bool grows = i < 200 ? !random.one_in(bias) : random.one_in(bias);
      if (grows) {
        fifo.push(i);
        expected.push_back(i);
      } else if (!expected.empty()) {
        fifo.pop();
        expected.pop_front();
      }
      ASSERT_EQ(fifo.empty(), expected.empty());
      ASSERT_EQ(fifo.size(), expected.size());
      if (expected.empty()) continue;
      ASSERT_EQ(fifo.front(), expected.front());
      ASSERT_EQ(fifo.back(), expected.back());
      const std::size_t at = random.up_to(expected.size() - 1);
      ASSERT_EQ(fifo.at(at), expected[at]);
    }
  }
}

TEST(FifoTest, ItemsCanBeChangedInPlaceAndNeedNoCopies) {
  Fifo<std::unique_ptr<int>> fifo;
  for (int i = 0; i < 100; ++i) fifo.push(std::make_unique<int>(i));
  *fifo.front() = 7;
  *fifo.at(50) = 8;
  EXPECT_EQ(*fifo.front(), 7);
  for (int i = 0; i < 50; ++i) fifo.pop();
  EXPECT_EQ(*fifo.front(), 8);
  EXPECT_EQ(fifo.size(), 50U);
}

TEST(FifoTest, WhatIsPoppedDoesNotStayForEver) {
  const auto item = std::make_shared<int>(1);
  Fifo<std::shared_ptr<int>> fifo;
  for (int i = 0; i < 10'000; ++i) {
    fifo.push(item);
    fifo.push(item);
    fifo.pop();
    ASSERT_LE(static_cast<std::size_t>(item.use_count()), 2 * fifo.size() + 100);
  }
  while (!fifo.empty()) fifo.pop();
  EXPECT_EQ(item.use_count(), 1);
}

}  // namespace
}  // namespace ubep::sim
