#include "tools/ubep/sim/step.hpp"

#include <algorithm>
#include <numeric>

#include "tools/ubep/random.hpp"
#include "tools/ubep/summary.hpp"

namespace ubep::tools {
namespace {

constexpr int kSteps = 2000;
constexpr std::uint64_t kSeed = 1;

}  // namespace

double layer_us(const StepModel& model, double non_expert, double exchange) {
  if (model.micro_batches == 1) return non_expert + exchange;
  const double n = model.micro_batches;
  return n * std::max(non_expert / n, exchange);
}

StepTimes step_us(const StepModel& model, double non_expert, const std::vector<double>& exchanges) {
  std::vector<double> layers;
  for (const double exchange : exchanges) layers.push_back(layer_us(model, non_expert, exchange));
  const double dense = model.dense_layers * non_expert;
  const double sum = std::accumulate(layers.begin(), layers.end(), 0.0);
  StepTimes times;
  times.mean = dense + model.moe_layers * sum / static_cast<double>(layers.size());
  Random random(kSeed);
  std::vector<double> steps;
  for (int i = 0; i < kSteps; ++i) {
    double step = dense;
    for (int layer = 0; layer < model.moe_layers; ++layer) {
      step += layers[random.below(static_cast<std::uint32_t>(layers.size()))];
    }
    steps.push_back(step);
  }
  times.p99 = summarize(std::move(steps)).p99;
  return times;
}

}  // namespace ubep::tools
