#include "plan/push_plan.hpp"

namespace ubep {

void sum_bases(const ExpertMap& experts, std::span<const std::vector<std::uint32_t>> counts,
               const ExpertRoom& room, const PushPair& pair, std::uint32_t* bases) {
  const auto owner = static_cast<std::size_t>(pair.owner);
  const auto first = static_cast<std::size_t>(experts.first[owner]);
  const auto last = static_cast<std::size_t>(experts.first[owner + 1]);
  std::uint64_t begin = 0;
  for (std::size_t position = first; position < last; ++position) {
    std::uint64_t all = 0;
    std::uint64_t before = 0;
    for (std::size_t q = 0; q < counts.size(); ++q) {
      if (pair.absent.contains(static_cast<int>(q))) continue;
      if (q == static_cast<std::size_t>(pair.self)) before = all;
      all += counts[q][position];
    }
    bases[position - first] = static_cast<std::uint32_t>(begin + before);
    begin += room.of(all);
  }
}

}  // namespace ubep
