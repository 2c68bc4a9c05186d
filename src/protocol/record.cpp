#include "protocol/record.hpp"

namespace ubep {

OpDifference find_corruption(std::span<const Entry> entries, const RecordLimits& limits) {
  const ExpertMap& map = *limits.experts;
  std::uint64_t previous = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (entry.token >= limits.tokens) return {"entry token", limits.tokens, entry.token};
    if (entry.k >= limits.topk) return {"entry k", limits.topk, entry.k};
    if (entry.expert >= map.num_experts() || map.rank[entry.expert] != limits.rank) {
      return {"entry expert", static_cast<std::uint64_t>(map.num_experts()), entry.expert};
    }
    const std::uint64_t group =
        is_by_expert(limits.layout) ? static_cast<std::uint64_t>(map.local[entry.expert]) : 0;
    // (local expert, token, k) strictly grows.
    const std::uint64_t key = group << 40 | static_cast<std::uint64_t>(entry.token) << 8 | entry.k;
    if (i != 0 && key <= previous) return {"entry order", previous, key};
    previous = key;
  }
  return {};
}

}  // namespace ubep
