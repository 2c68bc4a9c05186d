#include "tools/ubep/sim/step.hpp"

#include <gtest/gtest.h>

namespace ubep::tools {
namespace {

TEST(SimStepTest, AddsUpTheLayers) {
  const StepModel model{.moe_layers = 10, .dense_layers = 2};
  const StepTimes times = step_us(model, 100, {20});
  EXPECT_DOUBLE_EQ(times.mean, 2 * 100 + 10 * 120);
  EXPECT_NEAR(times.p99, times.mean, 1e-9);  // one seed: all layers are alike
}

TEST(SimStepTest, TheTailDrawsFromTheSeeds) {
  const StepModel model{.moe_layers = 1};
  EXPECT_DOUBLE_EQ(step_us(model, 0, {10, 30}).mean, 20);
  EXPECT_DOUBLE_EQ(step_us(model, 0, {10, 30}).p99, 30);
  const StepModel many{.moe_layers = 100};
  const StepTimes times = step_us(many, 0, {10, 30});
  EXPECT_DOUBLE_EQ(times.mean, 2000);
  // 2.3 deviations of 100 draws: 230.
  EXPECT_GT(times.p99, 2150);
  EXPECT_LT(times.p99, 2350);
  EXPECT_EQ(step_us(many, 0, {10, 30}).p99, times.p99);
}

TEST(SimStepTest, MicroBatchesHideTheShorterOfBoth) {
  const StepModel two{.moe_layers = 1, .micro_batches = 2};
  EXPECT_DOUBLE_EQ(layer_us(two, 100, 30), 100);
  EXPECT_DOUBLE_EQ(layer_us(two, 100, 80), 160);
  EXPECT_DOUBLE_EQ(layer_us({.moe_layers = 1}, 100, 30), 130);
}

}  // namespace
}  // namespace ubep::tools
