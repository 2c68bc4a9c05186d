// Figures that sum up many: times, loads, ratios, differences.
//
// Purpose: the one definition of each statistic that the command prints.
// Not for: streams of samples too large to keep.
//
//   Summary dispatch = summarize(times_us);
//   double skew = max_over_mean(rows_per_expert);      // 1 = balanced
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ubep::tools {

// All in the unit of the values. Percentiles are nearest-rank: p99 is the smallest value that at
// least 99 % of the values do not exceed, so always one of the values.
struct Summary {
  double avg = 0;
  double min = 0;
  double p25 = 0;
  double p50 = 0;
  double p75 = 0;
  double p99 = 0;
  double max = 0;
};

// All 0 when there are no values.
Summary summarize(std::vector<double> values);

// 0 when there are none.
double mean(std::span<const double> values);

struct Weighted {
  double value = 0;
  double weight = 1;  // >= 0
};

// Nearest-rank, too: the smallest value that `percent` (1 to 100) of the weight does not exceed. 0
// when there are no values.
double weighted_percentile(std::vector<Weighted> values, int percent);

// Largest load over the mean load; 1 when nothing is loaded.
double max_over_mean(std::span<const std::int64_t> loads);

// Of positive values; 1 when there are none.
double geometric_mean(std::span<const double> values);

// How far `actual` is from `expected`, same shape: 1 - 2 sum(ab) / (sum a^2 + sum b^2) in double,
// with a = actual + 1 and b = expected + 1. 0 when equal or empty, NaN when a value is NaN.
// Throws InputError when the sizes differ.
double calc_diff(std::span<const float> actual, std::span<const float> expected);

}  // namespace ubep::tools
