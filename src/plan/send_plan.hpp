// The source's side: own routing sorted by destination, and for every token where its rows will be.
//
// Pure: a function of (routing, expert map, shape). Flat arrays, no pointers. Counting sort, linear
// in tokens x topk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/entry.hpp"
#include "base/group_config.hpp"
#include "base/rank_set.hpp"
#include "plan/shape.hpp"

namespace ubep {

// Row number `index` among the rows that this source sent to `group` of `rank`.
struct RowRef {
  std::uint32_t index;
  std::uint16_t rank;
  std::uint16_t group;
};

struct SendPlan {
  std::uint32_t num_tokens = 0;
  // The record. expert_major: sorted (rank, local expert, token, k); else (rank, token, k).
  std::vector<std::uint32_t> off;  // [R + 1] first entry of each destination
  std::vector<Entry> entries;      // without the -1 ones
  // For combine: the rows of token t are refs[ref_begin[t] .. ref_begin[t + 1]), in the order of
  // the reduction.
  std::vector<std::uint32_t> ref_begin;  // [T + 1]
  std::vector<RowRef> refs;
  std::vector<float> ref_weights;         // one per ref when row_per_choice
  std::vector<std::uint8_t> group_end;    // one per ref when partial sums have several rows
  std::vector<std::uint32_t> group_rows;  // rows per group: [R], or [E] by expert position
  std::vector<std::uint8_t> crosses;      // [T] the token has a row on another rank
  RankSet owners;                         // ranks that get rows
  std::vector<std::uint32_t> first;       // scratch of make_send_plan()

  std::span<const Entry> to(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(entries).subspan(off[r], off[r + 1] - off[r]);
  }
  // rank_major: whether `rank` owns an expert of `token`.
  bool has_entry(int rank, std::uint32_t token) const {
    const auto row = to(rank);
    return std::binary_search(row.begin(), row.end(), Entry{token, 0, 0, 0},
                              [](const Entry& a, const Entry& b) { return a.token < b.token; });
  }
};

struct RoutingView {
  std::span<const std::int32_t> topk_idx;
  std::span<const float> topk_weights;
  std::uint32_t num_tokens = 0;
  int topk = 0;
};

// Fills `plan`, reusing its memory. `self` is the source's rank. Every index is -1 or in [0, E).
void make_send_plan(const RoutingView& routing, const ExpertMap& experts, const PlanShape& shape,
                    int self, SendPlan& plan);

}  // namespace ubep
