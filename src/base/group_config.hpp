// What all ranks of a communicator agree on at creation, and who owns which expert.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/math.hpp"
#include "ubep/types.hpp"

namespace ubep {

inline constexpr int kMaxRanks = 64;     // of a communicator, and of the fabric shm
inline constexpr int kMostRanks = 1024;  // of an engine
inline constexpr int kMaxTopk = 64;
inline constexpr int kMaxSlots = 16;
inline constexpr int kMaxExperts = 65535;
inline constexpr int kMaxAlignment = 256;
inline constexpr int kMaxLanes = 64;  // of a rank

// Experts sorted by (owner, global id). `position` of an expert is its place in that order,
// `local` its place among the experts of its owner.
struct ExpertMap {
  std::vector<std::int32_t> rank;      // [E]
  std::vector<std::int32_t> local;     // [E]
  std::vector<std::int32_t> position;  // [E]
  std::vector<std::int32_t> first;     // [R + 1] position of each rank's first expert

  ExpertMap() = default;
  ExpertMap(std::vector<std::int32_t> owner, int num_ranks)
      : rank(std::move(owner)),
        local(rank.size()),
        position(rank.size()),
        first(static_cast<std::size_t>(num_ranks) + 1) {
    for (std::int32_t r : rank) ++first[static_cast<std::size_t>(r) + 1];
    for (std::size_t r = 1; r < first.size(); ++r) first[r] += first[r - 1];
    std::vector<std::int32_t> next(static_cast<std::size_t>(num_ranks));
    for (std::size_t e = 0; e < rank.size(); ++e) {
      const auto r = static_cast<std::size_t>(rank[e]);
      local[e] = next[r]++;
      position[e] = first[r] + local[e];
    }
  }

  // Owner of the expert at that position.
  int owner_at(std::uint32_t at) const {
    const auto end = std::upper_bound(first.begin(), first.end(), static_cast<std::int32_t>(at));
    return static_cast<int>(end - first.begin()) - 1;
  }
  int num_experts() const { return static_cast<int>(rank.size()); }
  int num_local(int r) const {
    const auto i = static_cast<std::size_t>(r);
    return first[i + 1] - first[i];
  }
};

// Blocks of experts, the first E mod R ranks own one more.
inline std::vector<std::int32_t> block_map(int num_experts, int num_ranks) {
  std::vector<std::int32_t> owner;
  owner.reserve(static_cast<std::size_t>(num_experts));
  for (int r = 0; r < num_ranks; ++r) {
    const int count = num_experts / num_ranks + (r < num_experts % num_ranks ? 1 : 0);
    owner.insert(owner.end(), static_cast<std::size_t>(count), r);
  }
  return owner;
}

struct GroupConfig {
  int size = 1;
  int slots = 2;
  int max_tokens = 0;
  int max_topk = 8;
  std::uint64_t max_token_bytes = 0;  // of a token, and of an output
  std::uint64_t max_row_bytes = 0;    // of what travels for a token, with its payloads
  std::uint64_t max_payload = 0;
  std::uint64_t max_stride = 0;  // max_row_bytes rounded up to whole lines
  int expert_capacity = 0;       // most rows of an expert in expert_padded; 0 = not used
  bool push = false;             // every rank has an inbox
  bool bsp = false;              // with room for the windows of bsp
  bool stage_pushed = false;     // pushed rows of expert layouts go to blocks by source
  bool returns = false;          // outputs come back into inboxes on every path but allgather
  bool relay = false;            // with room for what is relayed between hosts
  Protocol protocol = Protocol::put_with_signal;  // of pushed rows
  int checksum_rows = 0;                          // of a batch; 0 = all rows of a message
  ExpertMap experts;

  // Rows that `rank` may receive from one source in one dispatch: a token may name an expert twice.
  std::uint64_t max_rows_from_source(int rank, int topk) const {
    return experts.num_local(rank) == 0 ? 0
                                        : checked_mul(static_cast<std::uint64_t>(max_tokens),
                                                      static_cast<std::uint64_t>(topk));
  }
  // Rows that fit into the receive areas of `rank`: packed with alignment padding, padded to the
  // capacity, or every token of every rank (allgather).
  std::uint64_t max_rows(int rank) const {
    const auto ranks = static_cast<std::uint64_t>(size);
    const auto local = static_cast<std::uint64_t>(experts.num_local(rank));
    const auto all = checked_mul(ranks, max_rows_from_source(rank, max_topk));
    const auto packed = all == 0 ? 0 : checked_add(all, checked_mul(local, kMaxAlignment - 1));
    const auto padded = checked_mul(local, static_cast<std::uint64_t>(expert_capacity));
    const auto tokens = checked_mul(ranks, static_cast<std::uint64_t>(max_tokens));
    return std::max({packed, padded, tokens});
  }
};

}  // namespace ubep
