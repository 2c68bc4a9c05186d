#include "tools/ubep/presets.hpp"

#include <gtest/gtest.h>

#include "tests/unit/tools/test_support.hpp"

namespace ubep::tools {
namespace {

TEST(PresetsTest, KnowTheModelsShapes) {
  const Preset decode = find_preset("qwen3-30b-decode");
  EXPECT_EQ(decode.slug, "qwen3-30b-decode");
  EXPECT_EQ(decode.hidden, 2048);
  EXPECT_EQ(decode.experts, 128);
  EXPECT_EQ(decode.topk, 8);
  EXPECT_EQ(decode.tokens_per_rank, (std::vector<int>{1, 8, 32, 128}));
  EXPECT_EQ(find_preset("deepseek-v3.2-prefill").tokens_per_rank, std::vector<int>{4096});
  EXPECT_EQ(find_preset("mixtral-8x7b-decode").topk, 2);
}

TEST(PresetsTest, AreAllFoundAndSound) {
  EXPECT_EQ(preset_slugs().size(), 18U);
  for (const std::string& slug : preset_slugs()) {
    const Preset preset = find_preset(slug);
    EXPECT_EQ(preset.slug, slug);
    EXPECT_LE(preset.topk, preset.experts) << slug;
    EXPECT_EQ(preset.hidden % 64, 0) << slug;
  }
}

TEST(PresetsTest, AnUnknownSlugListsThemAll) {
  EXPECT_INPUT_ERROR(find_preset("qwen3-30b"), "unknown preset qwen3-30b");
  const std::string message = input_error_of([] { find_preset(""); });
  for (const std::string& slug : preset_slugs()) EXPECT_PRED2(contains, message, slug);
}

TEST(PresetsTest, ModelsHaveLayers) {
  const ModelShape r1 = find_model("deepseek-r1");
  EXPECT_EQ(r1.layers, 61);
  EXPECT_EQ(r1.dense_layers, 3);
  EXPECT_EQ(r1.experts, 256);
  const ModelShape glm = find_model("glm-4.7");
  EXPECT_EQ(glm.layers, 92);
  EXPECT_EQ(glm.experts, 160);
  EXPECT_EQ(find_model("qwen3-30b").dense_layers, 0);
  EXPECT_INPUT_ERROR(find_model("deepseek-r1-decode"), "unknown model deepseek-r1-decode");
  EXPECT_INPUT_ERROR(find_model("gpt"), "glm-4.7, kimi-k2");
}

}  // namespace
}  // namespace ubep::tools
