#include "base/math.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace ubep {
namespace {

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();

TEST(MathTest, ProductsAndSumsUpToTheLimit) {
  EXPECT_EQ(checked_mul(0, kMost), 0U);
  EXPECT_EQ(checked_mul(kMost, 1), kMost);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1),
            kMost - (std::uint64_t{1} << 32) + 1);
  EXPECT_EQ(checked_add(kMost, 0), kMost);
  EXPECT_EQ(checked_add(kMost - 1, 1), kMost);
}

TEST(MathTest, NothingWraps) {
  EXPECT_THROW(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), Error);
  EXPECT_THROW(checked_mul(kMost, 2), Error);
  EXPECT_THROW(checked_add(kMost, 1), Error);
  EXPECT_THROW(round_up(kMost - 5, 64), Error);
}

TEST(MathTest, RoundsUpToMultiples) {
  EXPECT_EQ(round_up(0, 64), 0U);
  EXPECT_EQ(round_up(1, 64), 64U);
  EXPECT_EQ(round_up(64, 64), 64U);
  EXPECT_EQ(round_up(65, 64), 128U);
  EXPECT_EQ(round_up(10, 3), 12U);
  EXPECT_EQ(round_up(kMost - 63, 64), kMost - 63);
}

}  // namespace
}  // namespace ubep
