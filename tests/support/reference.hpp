// The scalar reference: what dispatch and combine must produce, worked out from all ranks' inputs.
//
// Purpose: an independent answer. It takes nothing from the library but the enums, sorts and
// rounds by itself, and knows nothing of slots, paths, stores or timing.
//
//   Problem problem = ...;                                   // all ranks' tokens and routing
//   ExpectedReceived received = expected_received(problem, rank);
//   std::vector<std::byte> out = expected_out(problem, rank);       // dense [tokens, hidden]
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ubep/types.hpp"

namespace ubep::test {

// Stand-in experts; the result is rounded to the dtype. e = global expert id.
enum class ExpertFunction : std::uint8_t {
  identity,     // x
  scaled,       // x * (1 + e mod 8) / 8
  square_plus,  // x * x + e
};

// One rank's tokens and the gate's decision for them.
struct RankInput {
  std::int64_t tokens = 0;
  std::vector<std::byte> x;            // dense [tokens, hidden]
  std::vector<std::int32_t> topk_idx;  // [tokens, topk] global ids, -1 = none
  std::vector<float> topk_weights;     // [tokens, topk]
  // What the library is given instead, or empty: ids of tokens that are not active, too.
  std::vector<std::int32_t> given_idx;
  std::vector<std::uint8_t> active;
  std::vector<std::vector<std::byte>> added;     // each dense [tokens, output_hidden()]
  std::vector<std::vector<std::byte>> payloads;  // each dense [tokens, Problem::payloads[i]]
};

// Bit q: rank q. Room for more ranks than a communicator may have.
using Ranks = std::bitset<128>;

struct Problem {
  int num_experts = 0;
  std::vector<std::int32_t> expert_rank;  // [num_experts], empty = blocks
  DType dtype = DType::bf16;
  int hidden = 0;
  int topk = 0;
  Layout layout = Layout::rank_major;
  bool topk1 = false;
  int expert_alignment = 1;
  int expert_capacity = 0;   // expert_padded; large enough
  bool every_token = false;  // rank_major: every token is a row on every rank (allgather)
  Reduction reduction = Reduction::automatic;
  // [R] where the owners' rows of each host are summed and rounded apart; empty = they are not. The
  // same number one rank after the other is one host.
  std::vector<int> host_of;
  ExpertFunction function = ExpertFunction::identity;
  // What travels: quantised rows, and behind each row payloads of so many bytes, from the next
  // multiple of 8 on.
  Quant quant = Quant::none;
  std::vector<int> payloads;
  // Of outputs, where they are not those of the tokens.
  bool own_output = false;
  DType out_dtype = DType::bf16;
  int out_hidden = 0;
  bool unweighted = false;   // sums without weights
  int added = 0;             // matrices that each rank adds to its sums
  Ranks sources = ~Ranks();  // that take part as sources
  Ranks zeroed;              // their rows have a place and are zero
  std::vector<RankInput> ranks;

  int num_ranks() const { return static_cast<int>(ranks.size()); }
  DType output_dtype() const { return own_output ? out_dtype : dtype; }
  int output_hidden() const { return own_output ? out_hidden : hidden; }
  // Whether rows travel as the caller has them.
  bool is_plain() const { return quant == Quant::none && payloads.empty(); }
};

// What rank `source` sends for a token; and the values that experts see, [hidden] of dtype.
std::vector<std::byte> record_of(const Problem& problem, int source, std::int64_t token);
std::vector<std::byte> values_of(const Problem& problem, const std::byte* record);

struct ExpectedReceived {
  std::int64_t num_rows = 0;
  std::size_t row_bytes = 0;
  std::vector<std::byte> rows;  // dense [num_rows] of row_bytes; alignment padding is zero
  std::vector<bool> undefined;  // [num_rows] or empty: rows of expert_padded that nobody sent
  std::vector<std::int32_t> src_counts;
  std::vector<std::int32_t> topk_idx;
  std::vector<float> topk_weights;
  std::vector<float> row_weights;         // expert layouts: [num_rows], 0 where nobody sent a row
  std::vector<std::int32_t> row_choices;  // and topk1: k of each row, -1 where nobody sent a row
  std::vector<std::int32_t> expert_rows;
  std::vector<std::int32_t> expert_counts;
  std::vector<std::int32_t> expert_offsets;
};

// Owner of each expert: `expert_rank` itself, or blocks where the first E mod R ranks own one more.
std::vector<std::int32_t> owners_of(const Problem& problem);
// Global ids of a rank's experts, in ascending order: the position is the local id.
std::vector<std::int32_t> experts_of(const Problem& problem, int rank);

ExpectedReceived expected_received(const Problem& problem, int rank);
std::vector<std::byte> expected_out(const Problem& problem, int rank);

// The stand-in expert on one row.
struct Expert {
  ExpertFunction function = ExpertFunction::identity;
  DType dtype = DType::bf16;
  int hidden = 0;
  DType out_dtype = DType::bf16;
  int out_hidden = 0;  // beyond hidden: columns again from the first on

  // y = f_id(x); the two may be the same memory if they are of one shape.
  void apply(std::int32_t id, const std::byte* x, std::byte* y) const;
  // sum += weight * f_id(x)
  void accumulate(std::int32_t id, float weight, const std::byte* x, float* sum) const;
  // y = round(sum)
  void round(const float* sum, std::byte* y) const;
};

}  // namespace ubep::test
