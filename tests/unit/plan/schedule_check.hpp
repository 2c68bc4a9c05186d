// What must hold of every schedule, as a function that names the first thing that does not.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/schedule.hpp"
#include "support/random.hpp"

namespace ubep::test {

struct ScheduleCase {
  Destinations to;
  OrderOptions options;
  std::vector<std::uint32_t> rows;  // [D]
  int lanes = 1;                    // that send; the order was made for options.lanes
  Schedule schedule;
  std::vector<std::vector<RowRun>> sent;  // [lanes] what each lane sends, in its order
};

// Fills schedule and sent from the rest.
inline void make(ScheduleCase& c) {
  make_order(c.to, c.options, c.schedule);
  count_rows(c.rows, c.schedule);
  c.sent.assign(static_cast<std::size_t>(c.lanes), {});
  for (int lane = 0; lane < c.lanes; ++lane) {
    auto& sent = c.sent[static_cast<std::size_t>(lane)];
    const auto slice =
        c.schedule.slice(static_cast<std::uint32_t>(lane), static_cast<std::uint32_t>(c.lanes));
    for_each_run(c.schedule, slice, [&](const RowRun& run) { sent.push_back(run); });
  }
}

inline std::string order_violation(const ScheduleCase& c) {
  std::vector<std::uint32_t> sorted = c.schedule.order;
  if (sorted.size() != c.to.tiers.size()) return "the order has not every destination";
  std::sort(sorted.begin(), sorted.end());
  for (std::uint32_t d = 0; d < sorted.size(); ++d) {
    if (sorted[d] != d) return fmt::format("destination {} is not in the order once", d);
  }
  return "";
}

// Of every tier, and of all, each lane of the order has as many destinations as any other, or one
// more or less.
inline std::string mix_violation(const ScheduleCase& c) {
  const auto& tiers = c.to.tiers;
  const int most = tiers.empty() ? 0 : *std::max_element(tiers.begin(), tiers.end());
  for (int tier = -1; tier <= most; ++tier) {  // -1: all
    std::uint32_t fewest = UINT32_MAX;
    std::uint32_t largest = 0;
    for (std::uint32_t lane = 0; lane < c.schedule.lanes; ++lane) {
      std::uint32_t num = 0;
      for (auto p = c.schedule.first_place(lane); p < c.schedule.first_place(lane + 1); ++p) {
        if (tier < 0 || tiers[c.schedule.order[p]] == tier) ++num;
      }
      fewest = std::min(fewest, num);
      largest = std::max(largest, num);
    }
    if (largest - fewest > 1) {
      return fmt::format("tier {}: one lane has {} destinations, one {}", tier, fewest, largest);
    }
  }
  return "";
}

// Every row once, lanes within one row, and destinations in the schedule's order.
inline std::string rows_violation(const ScheduleCase& c) {
  std::vector<std::vector<int>> times;
  for (const std::uint32_t rows : c.rows) times.emplace_back(rows, 0);
  std::vector<std::size_t> place(c.rows.size());
  for (std::size_t p = 0; p < c.schedule.order.size(); ++p) place[c.schedule.order[p]] = p;
  std::uint64_t fewest = UINT64_MAX;
  std::uint64_t largest = 0;
  std::size_t before = 0;
  for (std::size_t lane = 0; lane < c.sent.size(); ++lane) {
    std::uint64_t num = 0;
    for (const RowRun& run : c.sent[lane]) {
      num += run.count;
      if (run.destination >= times.size() ||
          std::uint64_t{run.first} + run.count > times[run.destination].size() || run.count == 0) {
        return fmt::format("lane {}: no rows {} to {} of destination {}", lane, run.first,
                           run.first + run.count, run.destination);
      }
      for (std::uint32_t i = 0; i < run.count; ++i) ++times[run.destination][run.first + i];
      if (place[run.destination] < before) {
        return fmt::format("lane {}: destination {} is out of order", lane, run.destination);
      }
      before = place[run.destination];
    }
    fewest = std::min(fewest, num);
    largest = std::max(largest, num);
  }
  for (std::size_t d = 0; d < times.size(); ++d) {
    for (std::size_t row = 0; row < times[d].size(); ++row) {
      if (times[d][row] == 1) continue;
      return fmt::format("row {} of destination {} is sent {} times", row, d, times[d][row]);
    }
  }
  if (largest - fewest > 1) return fmt::format("lanes send from {} to {} rows", fewest, largest);
  return "";
}

// Nothing when the schedule is as it must be.
inline std::string first_violation(const ScheduleCase& c) {
  std::string what = order_violation(c);
  if (what.empty() && c.options.remap) what = mix_violation(c);
  if (what.empty()) what = rows_violation(c);
  return what;
}

inline ScheduleCase random_schedule_case(std::uint64_t seed) {
  Random random(seed, 6, 14);
  ScheduleCase c;
  const auto num = static_cast<std::uint32_t>(random.one_in(8) ? random.between(100, 1100)
                                                               : random.between(0, 70));
  const int tiers = random.between(1, 5);
  const bool in_groups = random.one_in(2);
  const auto group = static_cast<std::uint32_t>(random.between(1, 9));
  for (std::uint32_t d = 0; d < num; ++d) {
    const int tier = in_groups ? static_cast<int>(d / group) % tiers : random.below(tiers);
    c.to.tiers.push_back(static_cast<std::uint16_t>(tier));
  }
  c.to.own_begin = static_cast<std::uint32_t>(random.between(0, static_cast<int>(num)));
  c.to.own_end = std::min(num, c.to.own_begin + static_cast<std::uint32_t>(random.below(4)));
  c.options = {.lanes = random.one_in(4) ? random.between(1, 300) : random.between(1, 64),
               .remap = !random.one_in(5)};
  c.lanes = random.one_in(3) ? random.between(1, 80) : c.options.lanes;
  const int none_in = random.between(1, 5);
  const int most = random.pick<int>({1, 3, 20});
  for (std::uint32_t d = 0; d < num; ++d) {
    const int rows = random.one_in(none_in) ? 0 : random.between(1, most);
    c.rows.push_back(static_cast<std::uint32_t>(rows));
  }
  if (num != 0 && random.one_in(6)) {  // one destination has nearly all
    c.rows[static_cast<std::size_t>(random.below(static_cast<int>(num)))] = 1000;
  }
  return c;
}

}  // namespace ubep::test
