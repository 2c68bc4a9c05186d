// Why the mix is even. Destinations are sorted by tier, so each tier is a run of consecutive
// positions of the sorted list. Position p goes to the lane whose turn is p mod L, where turns are
// a fixed permutation of the lanes: the list is a matrix with a row per round and a column per
// lane, filled by rows and read by columns. Of n consecutive positions every residue modulo L has
// floor(n / L) or ceil(n / L). So has every lane of every tier, and of all, whatever n, L and the
// number of tiers. An incomplete last row changes nothing: the run is then just shorter.
//
// Which lanes come first in a round is free, and used for one thing: the lanes whose share of
// destinations, floor((l + 1) D / L) - floor(l D / L), is the larger one have the first turns, so
// the incomplete row is theirs. Then columns begin where equal loads begin their slices of rows, up
// to less than one destination, instead of all the longer columns standing in front.
#include "plan/schedule.hpp"

#include <array>

#include "base/invariant.hpp"

namespace ubep {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Calls f(tier, begin, end) for runs of destinations of one tier: neighbours often are.
template <class F>
void for_each_tier_run(std::span<const std::uint16_t> tiers, std::uint32_t begin, std::uint32_t end,
                       F&& f) {
  while (begin < end) {
    const std::uint16_t tier = tiers[begin];
    std::uint32_t next = begin + 1;
    while (next < end && tiers[next] == tier) ++next;
    f(tier, begin, next);
    begin = next;
  }
}

// From the numbers of each tier to where the next destination of each goes: [tier_next, tier_end).
void count_tiers(std::span<const std::uint16_t> tiers, Schedule& s) {
  std::uint16_t most = 0;
  for (const std::uint16_t tier : tiers) most = std::max(most, tier);
  s.tier_end.assign(std::size_t{most} + 1, 0);
  s.tier_next.resize(std::size_t{most} + 1);
  std::uint32_t* const ends = s.tier_end.data();
  for_each_tier_run(
      tiers, 0, static_cast<std::uint32_t>(tiers.size()),
      [&](std::size_t tier, std::uint32_t begin, std::uint32_t end) { ends[tier] += end - begin; });
  std::uint32_t sum = 0;
  for (std::size_t tier = 0; tier <= most; ++tier) {
    s.tier_next[tier] = sum;
    sum += s.tier_end[tier];
    s.tier_end[tier] = sum;
  }
}

// The first destination that is met does not begin its tier: those directly before the own ones
// that are nearer are counted, and as many begin after it.
void turn_tiers(const Destinations& to, Schedule& s) {
  const auto num = static_cast<std::uint32_t>(to.tiers.size());
  const std::uint32_t others = num - (to.own_end - to.own_begin);
  std::size_t done = 0;  // tiers that know their number
  std::uint32_t d = to.own_begin;
  for (std::uint32_t before = 0; before < others && done + 1 < s.tier_next.size(); ++before) {
    d = d == 0 ? num - 1 : d - 1;
    for (; done < to.tiers[d]; ++done) {
      const std::size_t tier = done + 1;
      const std::uint32_t size = s.tier_end[tier] - s.tier_next[tier];
      if (size != 0 && before % size != 0) s.tier_next[tier] = s.tier_end[tier] - before % size;
    }
  }
}

// Fills s.sorted: by tier, cyclically from own_end within each. A tier's first position is where
// the tier before it ends.
void sort_by_tier(const Destinations& to, Schedule& s) {
  const auto num = static_cast<std::uint32_t>(to.tiers.size());
  count_tiers(to.tiers, s);
  turn_tiers(to, s);
  s.sorted.resize(num);
  std::uint32_t* const sorted = s.sorted.data();
  const auto fill = [&](std::uint32_t from, std::uint32_t d, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) sorted[from + i] = d + i;
  };
  const auto add = [&](std::size_t tier, std::uint32_t begin, std::uint32_t end) {
    std::uint32_t& next = s.tier_next[tier];
    const std::uint32_t count = end - begin;
    const std::uint32_t fits = std::min(count, s.tier_end[tier] - next);
    fill(next, begin, fits);
    next += fits;
    if (fits == count) return;
    next = tier == 0 ? 0 : s.tier_end[tier - 1];
    fill(next, begin + fits, count - fits);
    next += count - fits;
  };
  for_each_tier_run(to.tiers, to.own_end, num, add);
  for_each_tier_run(to.tiers, 0, to.own_end, add);
}

// Fills s.turns: the first place of each lane, in the order of the lanes' turns.
void give_turns(std::uint32_t num, Schedule& s) {
  s.turns.resize(s.lanes);
  std::uint32_t larger = 0;
  std::uint32_t smaller = num % s.lanes;
  const std::uint32_t share = num / s.lanes;
  std::uint32_t rest = 0;  // of l * num / lanes
  std::uint32_t place = 0;
  for (std::uint32_t lane = 0; lane < s.lanes; ++lane) {
    rest += num % s.lanes;
    const bool is_larger = rest >= s.lanes;
    if (is_larger) rest -= s.lanes;
    s.turns[is_larger ? larger++ : smaller++] = place;
    place += share + (is_larger ? 1 : 0);
  }
}

}  // namespace

void make_destinations(const ExpertMap& experts, std::span<const std::uint16_t> tiers,
                       const DestinationShape& shape, Destinations& destinations) {
  const std::size_t self = at(shape.self);
  destinations.tiers.clear();
  if (!shape.by_expert) {
    destinations.tiers.assign(tiers.begin(), tiers.end());
    destinations.own_begin = static_cast<std::uint32_t>(self);
    destinations.own_end = destinations.own_begin + 1;
    return;
  }
  for (std::size_t rank = 0; rank < tiers.size(); ++rank) {
    destinations.tiers.insert(destinations.tiers.end(),
                              at(experts.num_local(static_cast<int>(rank))), tiers[rank]);
  }
  destinations.own_begin = static_cast<std::uint32_t>(experts.first[self]);
  destinations.own_end = static_cast<std::uint32_t>(experts.first[self + 1]);
}

void make_order(const Destinations& destinations, const OrderOptions& options, Schedule& schedule) {
  const auto num = static_cast<std::uint32_t>(destinations.tiers.size());
  schedule.lanes = static_cast<std::uint32_t>(options.lanes);
  schedule.order.resize(num);
  schedule.begin.assign(std::size_t{num} + 1, 0);
  std::uint32_t* const order = schedule.order.data();
  if (!options.remap) {
    for (std::uint32_t place = 0, d = destinations.own_begin; place < num; ++place, ++d) {
      if (d == num) d = 0;
      order[place] = d;
    }
    return;
  }
  sort_by_tier(destinations, schedule);
  give_turns(num, schedule);
  const std::uint32_t* const sorted = schedule.sorted.data();
  const std::uint32_t* const turns = schedule.turns.data();
  std::uint32_t p = 0;
  for (std::uint32_t round = 0; p < num; ++round) {
    const std::uint32_t lanes = std::min(schedule.lanes, num - p);
    for (std::uint32_t turn = 0; turn < lanes; ++turn) order[turns[turn] + round] = sorted[p++];
  }
}

void count_rows(std::span<const std::uint32_t> rows, Schedule& schedule) {
  std::uint32_t* const begin = schedule.begin.data();
  std::uint64_t sum = 0;
  std::size_t place = 0;
  for (const std::uint32_t destination : schedule.order) {
    sum += rows[destination];
    begin[++place] = static_cast<std::uint32_t>(sum);
  }
  if (sum > UINT32_MAX) broken_invariant("a schedule of 2^32 rows or more");
}

ScheduleSlice Schedule::slice(std::uint32_t lane, std::uint32_t of_lanes) const {
  ScheduleSlice slice{.begin = part_begin(num_rows(), lane, of_lanes),
                      .end = part_begin(num_rows(), lane + 1, of_lanes)};
  if (slice.begin != slice.end) slice.place = find_place(begin, slice.begin);
  return slice;
}

void make_slices(const Schedule& schedule, std::span<ScheduleSlice> slices) {
  constexpr std::size_t kChunk = 64;  // lanes whose searches lie on the stack
  const std::uint32_t rows = schedule.num_rows();
  const auto lanes = static_cast<std::uint32_t>(slices.size());
  if (rows == 0) {
    std::fill(slices.begin(), slices.end(), ScheduleSlice{});
    return;
  }
  const std::uint32_t share = rows / lanes;
  std::uint64_t rest = 0;  // of lane * rows / lanes
  std::uint32_t next = 0;
  std::array<std::uint32_t, kChunk> begin;
  std::array<std::uint32_t, kChunk> places;
  for (std::size_t first = 0; first < lanes; first += kChunk) {
    const std::size_t num = std::min<std::size_t>(kChunk, lanes - first);
    for (std::size_t i = 0; i < num; ++i) {
      begin[i] = next;
      rest += rows % lanes;
      next += share + (rest >= lanes ? 1 : 0);
      rest -= rest >= lanes ? lanes : 0;
      slices[first + i].begin = begin[i];
      slices[first + i].end = next;
    }
    find_places(schedule.begin, std::span(begin).first(num), places.data());
    for (std::size_t i = 0; i < num; ++i) {
      const bool empty = slices[first + i].num_rows() == 0;
      slices[first + i].place = empty ? 0 : places[i];
    }
  }
}

void count_tier_rows(const Schedule& schedule, const ScheduleSlice& slice,
                     std::span<const std::uint16_t> tiers, std::span<std::uint64_t> rows) {
  for_each_run(schedule, slice,
               [&](const RowRun& run) { rows[tiers[run.destination]] += run.count; });
}

}  // namespace ubep
