// The owner's side: which rows came from where, where each goes, and what experts read.
//
// Pure, flat arrays, no pointers. Works on private copies of the sources' entries that already
// passed find_corruption().
#pragma once

#include <cstdint>
#include <vector>

#include "base/entry.hpp"
#include "base/group_config.hpp"
#include "base/math.hpp"
#include "plan/shape.hpp"

namespace ubep {

// What one source sent to this rank.
struct SourceRows {
  std::vector<Entry> entries;
  std::vector<std::uint32_t> row_token;    // [rows] token of each row at the source
  std::vector<std::uint32_t> row_entry;    // [rows + 1] first entry of each row
  std::vector<std::uint32_t> group_begin;  // [G + 1] first row of each group

  std::uint32_t num_rows() const { return static_cast<std::uint32_t>(row_token.size()); }
};

// Fills everything but `entries`, which it reads: rows for `rank` of a source with `tokens` tokens.
void index_rows(const ExpertMap& experts, const PlanShape& shape, int rank, std::uint32_t tokens,
                SourceRows& source);

// How an owner lays out the rows of its experts.
struct ExpertRoom {
  std::uint32_t alignment = 1;  // expert_major: each first row is a multiple of it
  std::uint32_t capacity = 0;   // expert_padded: rows of each expert; 0 = packed

  std::uint64_t of(std::uint64_t rows) const {
    if (capacity != 0) return capacity;
    return alignment == 1 ? rows : round_up(rows, alignment);
  }
};

struct ReceiveShape {
  PlanShape plan;
  int rank = 0;
  ExpertRoom room;
  bool want_pairs = false;  // owner weighting
};

struct ReceivePlan {
  std::vector<SourceRows> sources;  // [R]
  int groups = 1;                   // G: local experts for expert_major, else 1
  // Where the rows of (source, group) begin in the output area; published for combine.
  std::vector<std::uint32_t> bases;  // [R * G]
  std::int64_t num_rows = 0;         // N; expert layouts count padding
  std::uint32_t overflow = 0;  // expert_padded: rows of the fullest expert when beyond capacity

  // What `Received` shows (include/ubep/dispatch.hpp).
  std::vector<std::int32_t> src_counts;
  std::vector<std::int32_t> topk_idx;
  std::vector<float> topk_weights;
  std::vector<std::int32_t> expert_rows;
  std::vector<std::int32_t> expert_counts;
  std::vector<std::int32_t> expert_offsets;
  // Per source: place of each entry in expert_rows (want_pairs).
  std::vector<std::vector<std::uint32_t>> pairs;

  std::uint32_t base(int source, int group) const {
    return bases[static_cast<std::size_t>(source) * static_cast<std::size_t>(groups) +
                 static_cast<std::size_t>(group)];
  }
};

// Fills everything from plan.sources (all indexed), reusing memory. Experts beyond their capacity
// show `capacity` rows; those behind have no place.
void make_receive_plan(const ExpertMap& experts, const ReceiveShape& shape, ReceivePlan& plan);

// The weight of each row of an expert layout [num_rows], 0 where nobody's row lies. capacity: of an
// expert, 0 = none.
void list_row_weights(const ReceivePlan& plan, int capacity, std::vector<float>& weights);
// The same of k, -1 where nobody's row lies; also of topk1.
void list_row_choices(const ReceivePlan& plan, int capacity, std::vector<std::int32_t>& choices);

}  // namespace ubep
