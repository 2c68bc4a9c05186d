// Trains two layers of experts on some ranks, each a process, and on one: the losses are the same
// bits.
//
//   train_moe [--ranks 4] [--steps 100] [--layout expert_major] [--seed 1] [--check]
//
// --check trains on one process first and compares losses, gates and experts after the last step.
// The expert layouts give the same bits: every sum over tokens or choices is made in an order that
// does not depend on the ranks. rank_major adds partial sums of ranks, so its losses may differ by
// rounding that grows with the steps: 1e-4 of the loss is allowed.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "trainer.hpp"
#include "ubep/ubep.hpp"

namespace {

using namespace train;

constexpr double kTolerance = 1e-4;

struct Run {
  int ranks = 4;
  int steps = 100;
  bool check = false;
  TrainOptions options;
};

// What a run on one process leaves behind.
struct Result {
  std::vector<float> losses;                 // [steps]
  std::vector<std::vector<float>> gates;     // [layers]
  std::vector<std::vector<Expert>> experts;  // [layers][experts]
};

bool set_layout(const std::string& text, ubep::DispatchOptions& dispatch) {
  if (text == "rank_major_owner") dispatch.weighting = ubep::Weighting::owner;
  if (text == "expert_major") {
    dispatch.layout = ubep::Layout::expert_major;
  } else if (text == "expert_padded") {
    dispatch.layout = ubep::Layout::expert_padded;
  } else if (text == "rank_major" || text == "rank_major_owner") {
    dispatch.layout = ubep::Layout::rank_major;
  } else {
    return false;
  }
  return true;
}

template <class Number>
bool set_number(const char* text, Number& number) {
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  return error == std::errc{} && stop == end;
}

bool parse(int argc, char** argv, Run& run) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0) {
      run.check = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* const value = argv[i + 1];
    const std::string_view name = argv[i++];
    const bool known = name == "--ranks"    ? set_number(value, run.ranks)
                       : name == "--steps"  ? set_number(value, run.steps)
                       : name == "--seed"   ? set_number(value, run.options.seed)
                       : name == "--layout" ? set_layout(value, run.options.shape.dispatch)
                                            : false;
    if (!known) return false;
  }
  run.options.shards = run.ranks > 4 ? run.ranks : 4;
  return run.ranks >= 1 && run.ranks <= 64 && run.steps >= 1;
}

std::vector<float> train_steps(Trainer& trainer, int steps, bool print) {
  std::vector<float> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(trainer.step(step));
    if (print && (step % 10 == 0 || step + 1 == steps)) {
      std::printf("step %4d  loss %.6f\n", step, losses.back());
    }
  }
  return losses;
}

Result train_alone(const Run& run) {
  const ubep::ThreadGroup alone(1);
  Trainer trainer(alone.bootstrap(0), run.options);
  Result result;
  result.losses = train_steps(trainer, run.steps, false);
  for (int i = 0; i < Trainer::kLayers; ++i) {
    result.gates.push_back(trainer.layer(i).gate);
    result.experts.push_back(trainer.layer(i).experts);
  }
  return result;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Whether this rank has the same weights, to the bit, as the run on one process.
bool same_weights(const Trainer& trainer, int first_expert, const Result& alone) {
  for (int i = 0; i < Trainer::kLayers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    if (!same(trainer.layer(i).gate, alone.gates[layer])) return false;
    auto id = static_cast<std::size_t>(first_expert);
    for (const Expert& expert : trainer.layer(i).experts) {
      const Expert& other = alone.experts[layer][id++];
      if (!same(expert.w1, other.w1) || !same(expert.w2, other.w2)) return false;
    }
  }
  return true;
}

double largest_difference(const std::vector<float>& losses, const std::vector<float>& expected) {
  double largest = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    // A NaN is not within any tolerance.
    const double difference = std::abs(losses[i] / expected[i] - 1.0F);
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(largest)) break;
  }
  return largest;
}

int compare(const Trainer& trainer, const ubep::Bootstrap& bootstrap, const Run& run,
            const Result& alone, const std::vector<float>& losses) {
  const int first = run.options.shape.first_expert(bootstrap.rank, bootstrap.size);
  const bool equal = same(losses, alone.losses) && same_weights(trainer, first, alone);
  const double difference = largest_difference(losses, alone.losses);
  const bool exact = ubep::is_by_expert(run.options.shape.dispatch.layout);
  const bool passed = exact ? equal : difference <= kTolerance;
  if (bootstrap.rank == 0 || !passed) {
    std::printf(
        "rank %d of %d against one process: %s, losses differ by %.2g of their value at most "
        "(%s): %s\n",
        bootstrap.rank, bootstrap.size, equal ? "the same bits" : "not the same bits", difference,
        exact ? "the same bits are wanted" : "1e-4 is allowed", passed ? "passed" : "FAILED");
  }
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Run run;
  if (!parse(argc, argv, run)) {
    std::fprintf(stderr,
                 "usage: %s [--ranks 1..64] [--steps N] [--seed N] [--check]\n"
                 "  [--layout expert_major|expert_padded|rank_major|rank_major_owner]\n",
                 argv[0]);
    return 2;
  }
  const Result alone = run.check ? train_alone(run) : Result{};
  const auto body = [&](const ubep::Bootstrap& bootstrap) {
    Trainer trainer(bootstrap, run.options);
    const auto losses = train_steps(trainer, run.steps, bootstrap.rank == 0);
    const bool learned = losses.back() < losses.front() || run.steps == 1;
    if (!learned) std::printf("rank %d: the loss did not fall\n", bootstrap.rank);
    const int status = run.check ? compare(trainer, bootstrap, run, alone, losses) : 0;
    std::fflush(stdout);
    return learned ? status : 1;
  };
  for (const int status : ubep::fork_ranks(run.ranks, body)) {
    if (status != 0) return status;
  }
  return 0;
}
