// Stand-in activations and experts: cheap, exact, and different for every rank, token and expert.
//
// Purpose: a benchmark whose every byte can be checked, and experts that read each row they need
// and write an output beside it, as a GEMM does. Values are multiples of 1/64 in [-2, 2), exact in
// every dtype; expert e scales by 2^-(e mod 4), so its output is exact too.
// Not for: judging a model's speed; real experts stream weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ubep/ubep.hpp"

namespace ubep::tools {

// Which activations: `set` numbers the iteration's data.
struct Origin {
  int rank = 0;
  int set = 0;
};

// Fills x [num_rows, hidden] with the activations of `origin`, tokens from `first_token` on.
void make_activations(const Origin& origin, std::int64_t first_token, const Rows& x);

float expert_scale(std::int32_t expert);

// Runs the local experts of a rank: `experts` holds their global ids by local id.
void run_experts(const Received& received, std::span<const std::int32_t> experts,
                 const Rows& output);

// What combine must return for one token, in fp32, before the final rounding to the dtype.
struct TokenChoice {
  std::span<const std::int32_t> topk_idx;  // [K]
  std::span<const float> topk_weights;     // [K]
  std::span<const std::int32_t> expert_rank;
  Layout layout = Layout::rank_major;
  int ranks = 1;
  // rank_major: the hosts whose ranks' rows are summed and rounded first (Reduction::per_host).
  // Empty = none are.
  std::span<const int> host_of;
};
void expected_token(const TokenChoice& choice, const ConstRows& x, std::int64_t token,
                    std::span<float> out);

// Element conversions, round to nearest even.
float load_element(const std::byte* row, std::int64_t i, DType dtype);
void store_element(std::byte* row, std::int64_t i, DType dtype, float value);

}  // namespace ubep::tools
