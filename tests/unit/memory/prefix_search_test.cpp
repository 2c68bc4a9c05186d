#include "memory/prefix_search.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support/random.hpp"

namespace ubep {
namespace {

TEST(PrefixSearchTest, FourStepsUpTo256FiveUpTo1024) {
  EXPECT_EQ(search_steps(1), 0);
  EXPECT_EQ(search_steps(64), 3);
  EXPECT_EQ(search_steps(65), 4);
  EXPECT_EQ(search_steps(256), 4);
  EXPECT_EQ(search_steps(257), 5);
  EXPECT_EQ(search_steps(1024), 5);
}

TEST(PrefixSearchTest, FindsTheOnePlaceInAsManySteps) {
  for (std::uint32_t num = 1; num <= 1100; num += num < 300 ? 1 : 37) {
    test::Random random(num, 4, 4);
    std::vector<std::uint32_t> begin = {0};
    std::vector<std::uint32_t> owner;
    const int none_in = random.between(1, 4);
    for (std::uint32_t p = 0; p < num; ++p) {
      const int rows = random.one_in(none_in) ? 0 : random.between(1, 5);
      owner.insert(owner.end(), static_cast<std::size_t>(rows), p);
      begin.push_back(static_cast<std::uint32_t>(owner.size()));
    }
    for (std::uint32_t row = 0; row < owner.size(); ++row) {
      int steps = 0;
      ASSERT_EQ(find_place(begin, row, &steps), owner[row]) << num << " places, row " << row;
      ASSERT_EQ(steps, search_steps(num)) << num << " places, row " << row;
    }
    std::vector<std::uint32_t> rows(owner.size());
    std::iota(rows.begin(), rows.end(), 0U);
    std::vector<std::uint32_t> places(owner.size());
    find_places(begin, rows, places.data());
    ASSERT_EQ(places, owner) << num << " places";
  }
}

TEST(PrefixSearchTest, SumsBeyondTheSignedRange) {
  const std::vector<std::uint32_t> begin = {0, 0, 5, 0x80000000U, 0x80000000U, 0xFFFFFFFFU};
  const std::vector<std::uint32_t> rows = {0, 4, 5, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFEU, 0, 1, 2};
  const std::vector<std::uint32_t> want = {1, 1, 2, 2, 4, 4, 1, 1, 1};
  std::vector<std::uint32_t> places(rows.size());
  find_places(begin, rows, places.data());
  EXPECT_EQ(places, want);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(find_place(begin, rows[i]), want[i]);
}

}  // namespace
}  // namespace ubep
