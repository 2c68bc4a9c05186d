// The shapes of well-known MoE models, by name.
//
// Purpose: `--preset qwen3-30b-decode` instead of four numbers. A slug is a model name with
// `-decode` (1, 8, 32 and 128 tokens per rank, one point each) or `-prefill` (4096 tokens).
// A model's name alone gives its layers, too. Not for: dtypes, shared experts.
//
//   Preset preset = find_preset("deepseek-v3-decode");   // hidden 7168, experts 256, topk 8
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ubep::tools {

struct Preset {
  std::string slug;
  int hidden = 0;
  int experts = 0;
  int topk = 0;
  std::vector<int> tokens_per_rank;  // one benchmark point each
};

// Throws InputError that lists all slugs when there is none of that name.
Preset find_preset(std::string_view slug);

std::vector<std::string> preset_slugs();

struct ModelShape {
  std::string name;
  int hidden = 0;
  int experts = 0;
  int topk = 0;
  int layers = 0;
  int dense_layers = 0;  // of them; the others are MoE layers
};

// "deepseek-r1". Throws InputError that lists all names when there is none of that name.
ModelShape find_model(std::string_view name);

}  // namespace ubep::tools
