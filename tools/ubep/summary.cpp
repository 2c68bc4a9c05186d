#include "tools/ubep/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "tools/ubep/input_error.hpp"

namespace ubep::tools {

Summary summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  // In whole numbers: percent / 100.0 * size may round up past an exact rank.
  const auto percentile = [&](std::size_t percent) {
    return values[(percent * values.size() + 99) / 100 - 1];
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.avg = sum / static_cast<double>(values.size()),
          .min = values.front(),
          .p25 = percentile(25),
          .p50 = percentile(50),
          .p75 = percentile(75),
          .p99 = percentile(99),
          .max = values.back()};
}

double mean(std::span<const double> values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double weighted_percentile(std::vector<Weighted> values, int percent) {
  if (values.empty()) return 0;
  std::stable_sort(values.begin(), values.end(),
                   [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double all = 0;
  for (const Weighted& item : values) all += item.weight;
  // A sum of thirds may fall short of 1 by its rounding.
  const double wanted = all * percent / 100 * (1 - 1e-9);
  double sum = 0;
  for (const Weighted& item : values) {
    sum += item.weight;
    if (sum >= wanted && item.weight > 0) return item.value;
  }
  return values.back().value;
}

double max_over_mean(std::span<const std::int64_t> loads) {
  const std::int64_t sum = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  if (sum == 0) return 1;
  const auto max = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  return max * static_cast<double>(loads.size()) / static_cast<double>(sum);
}

double geometric_mean(std::span<const double> values) {
  if (values.empty()) return 1;
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

double calc_diff(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) {
    throw InputError(
        fmt::format("cannot compare {} values with {}", actual.size(), expected.size()));
  }
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]) + 1;
    const double b = static_cast<double>(expected[i]) + 1;
    products += a * b;
    squares += a * a + b * b;
  }
  return squares == 0 ? 0 : 1 - 2 * products / squares;
}

}  // namespace ubep::tools
