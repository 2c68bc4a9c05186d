#include "tools/ubep/presets.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tools/ubep/input_error.hpp"

namespace ubep::tools {
namespace {

struct Model {
  std::string_view name;
  int hidden;
  int experts;
  int topk;
};
constexpr Model kModels[] = {
    {"deepseek-v3", 7168, 256, 8}, {"deepseek-r1", 7168, 256, 8},  {"deepseek-v3.2", 7168, 256, 8},
    {"qwen3-30b", 2048, 128, 8},   {"qwen3-235b", 4096, 128, 8},   {"glm-4.7", 5120, 160, 8},
    {"kimi-k2", 7168, 384, 8},     {"gpt-oss-120b", 2880, 128, 4}, {"mixtral-8x7b", 4096, 8, 2},
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

}  // namespace ubep::tools
