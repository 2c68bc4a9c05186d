#include "tools/ubep/presets.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tools/ubep/input_error.hpp"

namespace ubep::tools {
namespace {

// From the models' config.json at huggingface.co: hidden_size, n_routed_experts (num_experts,
// num_local_experts), num_experts_per_tok, num_hidden_layers and first_k_dense_replace of
// deepseek-ai/DeepSeek-V3, -R1 and -V3.2, Qwen/Qwen3-30B-A3B and -235B-A22B, zai-org/GLM-4.7,
// moonshotai/Kimi-K2-Instruct, openai/gpt-oss-120b, mistralai/Mixtral-8x7B-v0.1.
struct Model {
  std::string_view name;
  int hidden;
  int experts;
  int topk;
  int layers;
  int dense_layers;
};
constexpr Model kModels[] = {
    {"deepseek-v3", 7168, 256, 8, 61, 3},   {"deepseek-r1", 7168, 256, 8, 61, 3},
    {"deepseek-v3.2", 7168, 256, 8, 61, 3}, {"qwen3-30b", 2048, 128, 8, 48, 0},
    {"qwen3-235b", 4096, 128, 8, 94, 0},    {"glm-4.7", 5120, 160, 8, 92, 3},
    {"kimi-k2", 7168, 384, 8, 61, 1},       {"gpt-oss-120b", 2880, 128, 4, 36, 0},
    {"mixtral-8x7b", 4096, 8, 2, 32, 0},
};

std::vector<Preset> all_presets() {
  std::vector<Preset> presets;
  for (const Model& model : kModels) {
    const auto add = [&](std::string_view suffix, std::vector<int> tokens) {
      presets.push_back({fmt::format("{}{}", model.name, suffix), model.hidden, model.experts,
                         model.topk, std::move(tokens)});
    };
    add("-decode", {1, 8, 32, 128});
    add("-prefill", {4096});
  }
  return presets;
}

}  // namespace

Preset find_preset(std::string_view slug) {
  for (Preset& preset : all_presets()) {
    if (preset.slug == slug) return std::move(preset);
  }
  throw InputError(
      fmt::format("unknown preset {}; there are: {}", slug, fmt::join(preset_slugs(), ", ")));
}

std::vector<std::string> preset_slugs() {
  std::vector<std::string> slugs;
  for (const Preset& preset : all_presets()) slugs.push_back(preset.slug);
  return slugs;
}

ModelShape find_model(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Model& m : kModels) {
    if (m.name == name) {
      return {std::string(m.name), m.hidden, m.experts, m.topk, m.layers, m.dense_layers};
    }
    names.push_back(m.name);
  }
  throw InputError(fmt::format("unknown model {}; there are: {}", name, fmt::join(names, ", ")));
}

}  // namespace ubep::tools
