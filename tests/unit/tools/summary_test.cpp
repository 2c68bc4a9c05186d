#include "tools/ubep/summary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/unit/tools/test_support.hpp"

namespace ubep::tools {
namespace {

TEST(SummaryTest, TakesNearestRanks) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1);  // 100 .. 1
  const Summary summary = summarize(values);
  EXPECT_EQ(summary.avg, 50.5);
  EXPECT_EQ(summary.min, 1);
  EXPECT_EQ(summary.p50, 50);
  EXPECT_EQ(summary.p99, 99);
  EXPECT_EQ(summary.max, 100);
}

TEST(SummaryTest, OfFewValues) {
  EXPECT_EQ(summarize({}).max, 0);
  const Summary one = summarize({7});
  EXPECT_EQ(one.min, 7);
  EXPECT_EQ(one.p50, 7);
  EXPECT_EQ(one.p99, 7);
  const Summary three = summarize({3, 1, 2});
  EXPECT_EQ(three.p50, 2);
  EXPECT_EQ(three.p99, 3);
  EXPECT_EQ(summarize({1, 2}).p50, 1);
}

TEST(SummaryTest, WeightedPercentile) {
  EXPECT_EQ(weighted_percentile({}, 50), 0);
  EXPECT_EQ(weighted_percentile({{3, 0.2}}, 5), 3);
  const std::vector<Weighted> thirds = {{3, 1.0 / 3}, {1, 1.0 / 3}, {2, 1.0 / 3}};
  EXPECT_EQ(weighted_percentile(thirds, 5), 1);
  EXPECT_EQ(weighted_percentile(thirds, 50), 2);
  EXPECT_EQ(weighted_percentile(thirds, 100), 3);
  // Little weight is not seen at the ends, and none nowhere.
  const std::vector<Weighted> ends = {{1, 0.04}, {2, 0.92}, {3, 0.04}, {0, 0}, {4, 0}};
  EXPECT_EQ(weighted_percentile(ends, 5), 2);
  EXPECT_EQ(weighted_percentile(ends, 95), 2);
  EXPECT_EQ(weighted_percentile(ends, 100), 3);
  EXPECT_EQ(weighted_percentile({{1, 1}, {2, 1}, {3, 2}}, 50), 2);
}

TEST(SummaryTest, MaxOverMean) {
  EXPECT_EQ(max_over_mean(std::vector<std::int64_t>{1, 1, 1, 1}), 1);
  EXPECT_EQ(max_over_mean(std::vector<std::int64_t>{4, 0, 0, 0}), 4);
  EXPECT_EQ(max_over_mean(std::vector<std::int64_t>{0, 0}), 1);
  EXPECT_EQ(max_over_mean({}), 1);
}

TEST(SummaryTest, GeometricMean) {
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{0.5, 2}), 1);
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{8}), 8);
  EXPECT_EQ(geometric_mean({}), 1);
}

TEST(CalcDiffTest, IsZeroForEqualAndGrowsWithTheDifference) {
  const std::vector<float> x = {1, -2, 3};
  EXPECT_NEAR(calc_diff(x, x), 0, 1e-15);
  EXPECT_EQ(calc_diff({}, {}), 0);
  const std::vector<float> minus_one = {-1, -1};  // a and b are all zero
  EXPECT_EQ(calc_diff(minus_one, minus_one), 0);
  // a = {1}, b = {3}: 1 - 2 * 3 / (1 + 9)
  EXPECT_DOUBLE_EQ(calc_diff(std::vector<float>{0}, std::vector<float>{2}), 0.4);
}

TEST(CalcDiffTest, ShowsNaNAndRefusesOtherSizes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(calc_diff(std::vector<float>{nan}, std::vector<float>{1})));
  EXPECT_INPUT_ERROR(calc_diff(std::vector<float>{1}, {}), "cannot compare 1 values with 0");
}

}  // namespace
}  // namespace ubep::tools
