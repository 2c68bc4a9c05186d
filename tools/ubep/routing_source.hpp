// Routing for a benchmark or a run: which experts each token goes to, and with what weights.
//
// Purpose: repeatable inputs (the same bytes on every platform for the same options), from even
// over skewed to recorded. The specs:
//   uniform    K distinct experts, each as likely
//   zipf:S     K distinct draws; the expert of popularity rank i (from 1) has weight i^-S
//   hot:N      N experts take half of the choices in expectation, the others share the rest evenly
//   file:PATH  tensor [tokens, K] or [layers, tokens, K] (its first layer) of a safetensors file
// Which experts are popular depends on the seed alone, so all ranks and sets agree on them.
// Not for: routing that depends on the tokens' content (there is no gate here).
//
//   RoutingOptions options{.num_tokens = {32, 32}, .topk = 8, .experts = 128, .seed = 1};
//   std::vector<RankRouting> ranks = make_routing("zipf:1.1", options);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ubep::tools {

struct RoutingOptions {
  std::vector<int> num_tokens;  // [ranks], tokens of each rank, >= 0
  int topk = 8;
  int experts = 128;
  std::uint64_t seed = 1;
  std::uint64_t set = 0;            // another set, other choices (weights only for `file:`)
  std::string tensor = "topk_idx";  // name in the file of `file:`, dtype i32 or i64
};

struct RankRouting {
  std::vector<std::int32_t> topk_idx;  // [num_tokens, K], -1 (only from files) = no expert
  std::vector<float> topk_weights;     // [num_tokens, K], > 0 and of sum 1 per token; 0 beside a -1
};

// One routing per rank. Throws InputError on a malformed spec and on options that do not fit it,
// among them K > experts, 2N < K (N hot experts cannot take half of the choices), a file with
// another K, too few rows, or an index beyond -1..experts-1.
std::vector<RankRouting> make_routing(std::string_view spec, const RoutingOptions& options);

}  // namespace ubep::tools
