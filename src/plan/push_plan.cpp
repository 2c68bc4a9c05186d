#include "plan/push_plan.hpp"

#include <algorithm>

namespace ubep {

void sum_bases(const ExpertMap& experts, std::span<const std::vector<std::uint32_t>> counts,
               const ExpertRoom& room, const PushPair& pair, std::uint32_t* bases) {
  const auto owner = static_cast<std::size_t>(pair.owner);
  const auto first = static_cast<std::size_t>(experts.first[owner]);
  const auto last = static_cast<std::size_t>(experts.first[owner + 1]);
  constexpr std::size_t kChunk = 64;  // groups, over which the inner loops vectorise
  std::uint64_t begin = 0;
  for (std::size_t chunk = first; chunk < last; chunk += kChunk) {
    const std::size_t groups = std::min(kChunk, last - chunk);
    std::uint32_t all[kChunk] = {};
    std::uint32_t before[kChunk] = {};
    for (std::size_t q = 0; q < counts.size(); ++q) {
      if (q == static_cast<std::size_t>(pair.self)) std::copy_n(all, groups, before);
      if (pair.absent.contains(static_cast<int>(q))) continue;
      const std::uint32_t* rows = counts[q].data() + chunk;
      for (std::size_t g = 0; g < groups; ++g) all[g] += rows[g];
    }
    for (std::size_t g = 0; g < groups; ++g) {
      bases[chunk - first + g] = static_cast<std::uint32_t>(begin + before[g]);
      begin += room.of(all[g]);
    }
  }
}

}  // namespace ubep
