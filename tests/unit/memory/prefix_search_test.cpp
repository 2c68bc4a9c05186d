#include "memory/prefix_search.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support/random.hpp"
#include "support/vector_targets.hpp"

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

// Prefix sums of random numbers, some of them 0, and the place of each row.
struct Sums {
  std::vector<std::uint32_t> begin = {0};
  std::vector<std::uint32_t> owner;

  explicit Sums(std::uint32_t num) {
    test::Random random(num, 4, 4);
    const int none_in = random.between(1, 4);
    for (std::uint32_t place = 0; place < num; ++place) {
      const int rows = random.one_in(none_in) ? 0 : random.between(1, 5);
      owner.insert(owner.end(), static_cast<std::size_t>(rows), place);
      begin.push_back(static_cast<std::uint32_t>(owner.size()));
    }
  }
};

constexpr std::uint32_t kMost = 1100;
std::uint32_t next_size(std::uint32_t num) { return num + (num < 300 ? 1 : 37); }

TEST(PrefixSearchTest, FindsTheOnePlaceInAsManySteps) {
  for (std::uint32_t num = 1; num <= kMost; num = next_size(num)) {
    const Sums sums(num);
    for (std::uint32_t row = 0; row < sums.owner.size(); ++row) {
      int steps = 0;
      ASSERT_EQ(find_place(sums.begin, row, &steps), sums.owner[row])
          << num << " places, row " << row;
      ASSERT_EQ(steps, search_steps(num)) << num << " places, row " << row;
    }
  }
}

class PrefixVectorsTest : public test::OnEachTarget {};

INSTANTIATE_TEST_SUITE_P(Targets, PrefixVectorsTest, test::each_target(), test::TargetName());

TEST_P(PrefixVectorsTest, FindTheSamePlaces) {
  for (std::uint32_t num = 1; num <= kMost; num = next_size(num)) {
    const Sums sums(num);
    std::vector<std::uint32_t> rows(sums.owner.size());
    std::iota(rows.begin(), rows.end(), 0U);
    std::vector<std::uint32_t> places(rows.size());
    find_places(sums.begin, rows, places.data());
    ASSERT_EQ(places, sums.owner) << num << " places";
  }
}

TEST_P(PrefixVectorsTest, SumsBeyondTheSignedRange) {
  const std::vector<std::uint32_t> begin = {0, 0, 5, 0x80000000U, 0x80000000U, 0xFFFFFFFFU};
  std::vector<std::uint32_t> rows;
  for (int i = 0; i < 10; ++i) {
    rows.insert(rows.end(), {0, 4, 5, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFEU, 1});
  }
  std::vector<std::uint32_t> places(rows.size());
  find_places(begin, rows, places.data());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(places[i], (std::vector<std::uint32_t>{1, 1, 2, 2, 4, 4, 1})[i % 7]) << rows[i];
    EXPECT_EQ(places[i], find_place(begin, rows[i])) << rows[i];
  }
}

}  // namespace
}  // namespace ubep
