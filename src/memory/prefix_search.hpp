// Where a number lies among prefix sums: four-way search, for one number or many at once.
//
//   find_place(begin, 3)  // 2 for begin = {0, 3, 3, 7}: the place before it is empty
//
// From UBEP (arXiv 2607.06202, as secondary notes tell it): three pivots a step. Not for sums in
// which the number need not lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ubep {

// The steps of find_place() among D = `num` places: the logarithm to base 4, rounded up.
constexpr int search_steps(std::size_t num) {
  int steps = 0;
  for (std::size_t reach = 1; reach < num; reach *= 4) ++steps;
  return steps;
}

// begin: [D + 1] prefix sums, at most 2^29 of them; row < begin[D]. The one place p with begin[p]
// <= row < begin[p + 1]. Four-way: each step compares with three pivots and keeps a quarter. No
// branch but the loop's. `steps`: how many it took, for tests.
inline std::uint32_t find_place(std::span<const std::uint32_t> begin, std::uint32_t row,
                                int* steps = nullptr) {
  const auto last = static_cast<std::uint32_t>(begin.size() - 1);
  const std::uint32_t* const sums = begin.data();
  std::uint32_t place = 0;
  // The place is one of [place, place + rest). A pivot behind the end reads begin[D] > row.
  for (std::uint32_t rest = last; rest > 1;) {
    rest = (rest + 3) / 4;
    const bool one = sums[std::min(place + rest, last)] <= row;
    const bool two = sums[std::min(place + 2 * rest, last)] <= row;
    const bool three = sums[std::min(place + 3 * rest, last)] <= row;
    std::uint32_t further = one ? rest : 0;  // moves on conditions that do not wait for each other
    further = two ? 2 * rest : further;
    place += three ? 3 * rest : further;
    if (steps != nullptr) ++*steps;
  }
  return place;
}

// The same for many rows at once, in vectors of what the machine has. places: [rows].
void find_places(std::span<const std::uint32_t> begin, std::span<const std::uint32_t> rows,
                 std::uint32_t* places);

}  // namespace ubep
