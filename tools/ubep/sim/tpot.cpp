#include "tools/ubep/sim/tpot.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/option_checks.hpp"
#include "tools/ubep/sim/step.hpp"
#include "tools/ubep/sim/tpot_report.hpp"

namespace ubep::tools {
namespace {

// A layer of DeepSeek-R1 without multi-token prediction on CloudMatrix384, 96 tokens a die, with
// the dispatch and combine of 256 routed experts: arXiv 2506.12708.
struct PublicLayer {
  const char* pod = "cm384";
  const char* model = "deepseek-r1";
  int ranks = 256;
  int tokens = 96;
  double us = 874;
};
constexpr PublicLayer kPublicLayer;

constexpr std::size_t kBsp = 0;  // of the plan's paths
constexpr std::size_t kPush = 1;

sim::Time time_of(double us) {
  return static_cast<sim::Time>(std::llround(us * double{sim::kMicrosecond}));
}

class Tpot {
 public:
  Tpot(const CLI::App& app, const TpotCommand& command)
      : command_(command),
        model_(find_model(command.sim.preset)),
        knows_layer_(app.count("--layer-us") != 0),
        variants_(find_variants(command.sim)) {
    if (app.count("--protocol") != 0) protocol_ = protocol_of(command.sim.protocol);
    const TpotSweep sweep = parse_tpot_sweep(command.sweep);
    if (app.count("--ranks") != 0 && !sweep.ranks.empty()) {
      throw InputError("--ranks has no meaning with --sweep ranks=");
    }
    if (app.count("--tokens") != 0 && !sweep.tokens.empty()) {
      throw InputError("--tokens has no meaning with --sweep tokens=");
    }
    const int all = variants_.front().pod.ranks;
    ranks_ = sweep.ranks;
    tokens_ = sweep.tokens;
    if (ranks_.empty()) ranks_ = {command.sim.ranks == 0 ? all : command.sim.ranks};
    if (tokens_.empty()) tokens_ = {command.sim.tokens};
    refuse_meaningless(app);
    for (const int ranks : ranks_) {
      check_experts(ranks);
      for (const int tokens : tokens_) check_runs(plan(ranks, tokens));
    }
  }

  TpotResult run() {
    TpotResult result{.model = model_};
    for (const int ranks : ranks_) {
      for (const int tokens : tokens_) result.points.push_back(point(ranks, tokens));
    }
    result.events = events_;
    mark_front(result.points);
    return result;
  }
  SimPlan first_plan() const { return plan(ranks_.front(), tokens_.front()); }

 private:
  bool is_public(int ranks, int tokens) const {
    return !knows_layer_ && model_.name == kPublicLayer.model && ranks == kPublicLayer.ranks &&
           tokens == kPublicLayer.tokens && variants_.front().pod.name == kPublicLayer.pod;
  }

  void refuse_meaningless(const CLI::App& app) const {
    if (app.count("--tensor") != 0 && !command_.sim.routing.starts_with("file:")) {
      throw InputError("--tensor needs --routing file:");
    }
    if (app.count("--token-us") != 0 && !knows_layer_) {
      throw InputError("--token-us needs --layer-us");
    }
    for (const int tokens : tokens_) {
      if (tokens == 0) throw InputError("--tokens is 0, a decode step has at least 1");
      if (tokens % command_.micro_batches != 0) {
        throw InputError(
            fmt::format("{} tokens cannot be {} micro-batches", tokens, command_.micro_batches));
      }
      for (const int ranks : ranks_) {
        if (knows_layer_ || is_public(ranks, tokens)) continue;
        for (const char* option : {"--tpot-limit-ms", "--micro-batches"}) {
          if (app.count(option) == 0) continue;
          throw InputError(fmt::format(
              "{} needs --layer-us: the non-expert time of {} with {} tokens on {} ranks of {} is "
              "not known",
              option, model_.name, tokens, ranks, variants_.front().pod.name));
        }
      }
    }
  }

  void check_experts(int ranks) const {
    if (ranks <= model_.experts) return;
    throw InputError(
        fmt::format("{} has {} experts: {} of {} ranks would have none; take at most {} ranks",
                    model_.name, model_.experts, ranks - model_.experts, ranks, model_.experts));
  }

  // All paths with the tokens of one micro-batch.
  SimPlan plan(int ranks, int tokens) const {
    const SimCommand& c = command_.sim;
    SimPlan plan;
    plan.base.ranks = ranks;
    plan.base.hidden = model_.hidden;
    plan.base.topk = model_.topk;
    plan.base.experts = model_.experts;
    plan.base.dtype = dtype_of(c.dtype);
    plan.base.arrival = time_of(command_.jitter_us);
    const double rows = static_cast<double>(tokens) * model_.topk;
    plan.base.expert_row = time_of(command_.expert_us / rows);
    plan.lanes = c.lanes;
    plan.variants = variants_;
    plan.paths = parse_contenders("bsp,push", protocol_);
    plan.scenario = c.scenario;
    plan.tokens = {tokens / command_.micro_batches};
    for (int i = 0; i < c.seeds; ++i) plan.seeds.push_back(c.seed + static_cast<std::uint64_t>(i));
    plan.routing = c.routing;
    plan.tensor = c.tensor;
    plan.jobs = c.jobs;
    return plan;
  }

  // [variants][seeds] of one path: what a layer spends on dispatch, experts and combine.
  using Exchanges = std::vector<std::vector<double>>;
  static Exchanges exchanges(const SimPlan& plan, const SimGrid& grid, std::size_t path) {
    Exchanges all(plan.variants.size());
    for (std::size_t v = 0; v < all.size(); ++v) {
      for (std::size_t s = 0; s < plan.seeds.size(); ++s) {
        const LayerRun& run = grid.run(0, path, v, s);
        all[v].push_back(mean(run.dispatch.us) + run.experts + mean(run.combine.us));
      }
    }
    return all;
  }

  // [variants]
  std::vector<double> non_expert(int ranks, int tokens) {
    std::vector<double> us(variants_.size(), command_.layer_us + command_.token_us * tokens);
    if (!is_public(ranks, tokens)) return us;
    // What the published layer consists of, as far as its conditions are known.
    SimPlan reference = plan(ranks, tokens);
    reference.paths.resize(1);
    reference.tokens = {tokens};
    reference.routing = "uniform";
    reference.base.arrival = 0;
    const SimGrid grid(reference);
    events_ += grid.events();
    const Exchanges bsp = exchanges(reference, grid, kBsp);
    for (std::size_t v = 0; v < us.size(); ++v) {
      us[v] = kPublicLayer.us - mean(bsp[v]);
      if (us[v] > 0) continue;
      throw InputError(fmt::format(
          "bsp's dispatch, experts and combine take {:.0f} us on variant {}, more than the "
          "published {} us of a whole layer: give --layer-us",
          mean(bsp[v]), variants_[v].name, kPublicLayer.us));
    }
    return us;
  }

  template <class Value>
  Interval over_variants(Value value) const {
    std::vector<Weighted> values;
    for (std::size_t v = 0; v < variants_.size(); ++v) {
      values.push_back({value(v), variants_[v].weight});
    }
    return interval_of(values);
  }

  TpotPoint point(int ranks, int tokens) {
    TpotPoint point{.ranks = ranks, .tokens = tokens, .derived = is_public(ranks, tokens)};
    const std::vector<double> rest = non_expert(ranks, tokens);
    const bool absolute = knows_layer_ || point.derived;
    if (absolute) point.non_expert_us = over_variants([&](std::size_t v) { return rest[v]; });
    const SimPlan runs = plan(ranks, tokens);
    const SimGrid grid(runs);
    events_ += grid.events();
    const StepModel model{.moe_layers = model_.layers - model_.dense_layers,
                          .dense_layers = model_.dense_layers,
                          .micro_batches = command_.micro_batches};
    std::vector<std::vector<StepTimes>> steps;  // [paths][variants]
    for (std::size_t p = 0; p < runs.paths.size(); ++p) {
      const Exchanges us = exchanges(runs, grid, p);
      steps.emplace_back();
      for (std::size_t v = 0; v < us.size(); ++v) {
        steps[p].push_back(step_us(model, rest[v], us[v]));
      }
      TpotPath path{.path = runs.paths[p].text};
      path.exchange_us = over_variants([&](std::size_t v) { return mean(us[v]); });
      if (absolute) {
        path.mean_ms = over_variants([&](std::size_t v) { return steps[p][v].mean * 1e-3; });
        path.p99_ms = over_variants([&](std::size_t v) { return steps[p][v].p99 * 1e-3; });
        path.tokens_per_s = tokens / path.mean_ms.mid * 1e3;
      }
      point.paths.push_back(std::move(path));
    }
    point.gain_mean_ms = over_variants(
        [&](std::size_t v) { return (steps[kBsp][v].mean - steps[kPush][v].mean) * 1e-3; });
    point.gain_p99_ms = over_variants(
        [&](std::size_t v) { return (steps[kBsp][v].p99 - steps[kPush][v].p99) * 1e-3; });
    return point;
  }

  static void mark_front(std::vector<TpotPoint>& points) {
    const auto beats = [](const TpotPath& a, const TpotPath& b) {
      return a.mean_ms.mid <= b.mean_ms.mid && a.tokens_per_s >= b.tokens_per_s &&
             (a.mean_ms.mid < b.mean_ms.mid || a.tokens_per_s > b.tokens_per_s);
    };
    for (TpotPoint& point : points) {
      for (std::size_t p = 0; p < point.paths.size(); ++p) {
        point.paths[p].on_front =
            point.non_expert_us &&
            std::none_of(points.begin(), points.end(), [&](const TpotPoint& other) {
              return other.non_expert_us && beats(other.paths[p], point.paths[p]);
            });
      }
    }
  }

  const TpotCommand& command_;
  ModelShape model_;
  bool knows_layer_;
  std::vector<sim::PodVariant> variants_;
  std::optional<ProtocolChoice> protocol_;
  std::vector<int> ranks_;
  std::vector<int> tokens_;
  std::uint64_t events_ = 0;
};

}  // namespace

TpotSweep parse_tpot_sweep(const std::string& text) {
  TpotSweep sweep;
  if (text.empty()) return sweep;
  std::vector<int>* values = nullptr;
  int most = 0;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals == std::string::npos ? 0 : equals);
    if (equals != std::string::npos) {
      values = key == "ranks" ? &sweep.ranks : key == "tokens" ? &sweep.tokens : nullptr;
      most = key == "ranks" ? 1024 : 1 << 16;
      if (values != nullptr && !values->empty()) {
        throw InputError(fmt::format("--sweep: {}= is there twice", key));
      }
    }
    if (values == nullptr) {
      throw InputError(
          fmt::format("--sweep: '{}' is not of ranks=NUMBER,...,tokens=NUMBER,...", text));
    }
    const std::string number = equals == std::string::npos ? part : part.substr(equals + 1);
    const int value = parse_numbers(number, "--sweep", 1, most).front();
    if (std::find(values->begin(), values->end(), value) != values->end()) {
      throw InputError(fmt::format("--sweep: {} is there twice", value));
    }
    values->push_back(value);
  }
  return sweep;
}

void add_tpot_options(CLI::App& app, TpotCommand& c) {
  c.sim.tokens = 96;
  c.sim.seeds = 4;
  const auto not_negative = from_to(0, 1e9);
  add_pod_options(app, c.sim);
  app.add_option("--preset", c.sim.preset, "the model, e.g. deepseek-r1")->required();
  app.add_option("--layer-us", c.layer_us,
                 "of a layer but for dispatch, experts and combine; without it only differences "
                 "are told, but for deepseek-r1 with 96 tokens on 256 ranks of cm384")
      ->check(not_negative);
  app.add_option("--token-us", c.token_us, "the same, for each token of a rank")
      ->check(not_negative);
  app.add_option("--expert-us", c.expert_us,
                 "of a rank's experts where it has as many rows as the mean (0)")
      ->check(not_negative);
  app.add_option("--jitter-us", c.jitter_us,
                 "ranks arrive late by an exponential time of this mean, at most 10 times it (0)")
      ->check(from_to(0, 1e6));
  app.add_option("--micro-batches", c.micro_batches,
                 "1, or 2: half of the tokens' exchange beside the other half's rest, at best")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  app.add_option("--sweep", c.sweep, "e.g. ranks=64,128,tokens=8,32: a point for each pair");
  app.add_option("--tpot-limit-ms", c.limit_ms, "which points are within it")
      ->check(from_to(0.001, 1e9));
  add_run_options(app, c.sim);
}

int run_tpot(const CLI::App& app, const TpotCommand& command) {
  for (const CLI::Option* option : app.get_parent()->get_options()) {
    if (option->count() == 0) continue;
    throw InputError(fmt::format("{} goes behind tpot", option->get_name()));
  }
  Tpot tpot(app, command);
  if (app.count("--json") > 0 && command.sim.json != "-") check_writable(command.sim.json);
  std::FILE* const out = command.sim.json == "-" ? stderr : stdout;
  const TpotResult result = tpot.run();
  const SimPlan plan = tpot.first_plan();
  print_tpot(command, plan, result, out);
  const std::string json = tpot_json(command, plan, result).dump(2) + "\n";
  if (command.sim.json == "-") {
    fmt::print("{}", json);
  } else if (!command.sim.json.empty()) {
    write_file(command.sim.json, json);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw InputError("the result could not be written to standard output");
  }
  return kOk;
}

}  // namespace ubep::tools
