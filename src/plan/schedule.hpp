// Which lane of a source sends which rows, and in which order: even in rows, alike in distance.
//
//   Destinations to;                          // once per communicator
//   make_destinations(experts, tiers_from_me, {.self = me, .by_expert = true}, to);
//   Schedule schedule;
//   make_order(to, {.lanes = 8}, schedule);   // once per number of lanes
//   count_rows(plan.group_rows, schedule);    // per dispatch
//   for_each_run(schedule, schedule.slice(lane, 8), [&](const RowRun& run) { send(run); });
//
// The algorithm is UBEP's hierarchical token-level scheduling (arXiv 2607.06202, as secondary notes
// tell it). Pure: flat arrays, no pointers. Linear in destinations, tiers and lanes; reuses its
// memory. Not for one lane that sends everything in the order of the record: that needs no
// schedule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/group_config.hpp"
#include "memory/prefix_search.hpp"

namespace ubep {

// What a source sends rows to: the groups of SendPlan::group_rows, ranks or expert positions.
struct Destinations {
  std::vector<std::uint16_t> tiers;  // [D] how far each is: 0 nearest, numbers may be missing
  std::uint32_t own_begin = 0;       // the source's own: [own_begin, own_end), perhaps none
  std::uint32_t own_end = 0;
};

struct DestinationShape {
  int self = 0;
  bool by_expert = false;  // D = E, expert positions; else D = R
};

// tiers: [R] of each rank as seen from `self`.
void make_destinations(const ExpertMap& experts, std::span<const std::uint16_t> tiers,
                       const DestinationShape& shape, Destinations& destinations);

struct OrderOptions {
  int lanes = 1;      // any number from 1, also more than destinations
  bool remap = true;  // else ascending from the own destinations on, whatever their tiers
};

// Rows [begin, end) of all, and the place of the destination that row `begin` belongs to.
struct ScheduleSlice {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t place = 0;

  std::uint32_t num_rows() const { return end - begin; }
};

// Rows [first, first + count) of those for `destination`.
struct RowRun {
  std::uint32_t destination = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// Item `part` of `parts` when `num` things are cut into consecutive pieces that differ by one at
// most: where it begins, floor(part * num / parts).
inline std::uint32_t part_begin(std::uint32_t num, std::uint32_t part, std::uint32_t parts) {
  return static_cast<std::uint32_t>(std::uint64_t{num} * part / parts);
}

struct Schedule {
  std::vector<std::uint32_t> order;  // [D] destinations, each once; an index of it is a place
  std::vector<std::uint32_t> begin;  // [D + 1] first row of each place, then the number of rows T
  std::uint32_t lanes = 1;           // that the order was made for
  std::vector<std::uint32_t> sorted, tier_next, tier_end, turns;  // scratch of make_order()

  std::uint32_t num_destinations() const { return static_cast<std::uint32_t>(order.size()); }
  std::uint32_t num_rows() const { return begin.empty() ? 0 : begin.back(); }
  // Places [first_place(l), first_place(l + 1)) were dealt to lane l: its even mix of tiers.
  std::uint32_t first_place(std::uint32_t lane) const {
    return part_begin(num_destinations(), lane, lanes);
  }
  // Lane `lane` of `of_lanes` (not necessarily those of the order): rows floor(lane * T / of_lanes)
  // to floor((lane + 1) * T / of_lanes), so lanes differ by one row at most. Cuts across
  // destinations. Any lane may call it at any time.
  ScheduleSlice slice(std::uint32_t lane, std::uint32_t of_lanes) const;
};

// Fills schedule.order. With remap, for every tier the numbers of its destinations among the places
// of lanes (first_place) differ by one at most, for any number of destinations, lanes and tiers; so
// do the numbers of all destinations. Places of one lane go from near to far.
//
// Within a tier destinations ascend, cyclically, from behind the own ones, and then as many of them
// are put last as nearer ones lie directly before the own: sources of one group begin a farther
// tier at different destinations. In a pod of equal groups of consecutive ranks no two sources have
// the same destination at the same place.
void make_order(const Destinations& destinations, const OrderOptions& options, Schedule& schedule);

// Fills schedule.begin. rows: [D] for each destination, in the order of destinations; 0 for those
// that get none, and for the own ones when they are not sent. Fewer than 2^32 together.
void count_rows(std::span<const std::uint32_t> rows, Schedule& schedule);

// slices: [of_lanes], as slice() gives them, all lanes' searches at once.
void make_slices(const Schedule& schedule, std::span<ScheduleSlice> slices);

// Walks a slice, some rows of one destination at a time; may stop and go on at any run.
class RunCursor {
 public:
  explicit RunCursor(const ScheduleSlice& slice)
      : next_(slice.begin), end_(slice.end), place_(slice.place) {}

  bool done() const { return next_ == end_; }
  // The next rows, `most` of them at most (at least 1). Not when done.
  RowRun next(const Schedule& schedule, std::uint32_t most = UINT32_MAX) {
    while (schedule.begin[place_ + 1] <= next_) ++place_;
    const std::uint32_t end = std::min(end_, schedule.begin[place_ + 1]);
    const RowRun run = {.destination = schedule.order[place_],
                        .first = next_ - schedule.begin[place_],
                        .count = std::min(most, end - next_)};
    next_ += run.count;
    return run;
  }

 private:
  std::uint32_t next_;
  std::uint32_t end_;
  std::uint32_t place_;
};

// Calls f(RowRun) for each destination that has rows in the slice, in the schedule's order.
template <class F>
void for_each_run(const Schedule& schedule, const ScheduleSlice& slice, F&& f) {
  for (RunCursor cursor(slice); !cursor.done();) f(cursor.next(schedule));
}

// Adds the rows of the slice to those of their tiers. tiers: [D] by destination; rows: [tiers].
// Slices of rows follow the places of lanes only where loads are even, so this is what a lane
// really sends how far.
void count_tier_rows(const Schedule& schedule, const ScheduleSlice& slice,
                     std::span<const std::uint16_t> tiers, std::span<std::uint64_t> rows);

}  // namespace ubep
