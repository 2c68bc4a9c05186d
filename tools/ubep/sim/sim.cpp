#include "tools/ubep/sim/sim.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/sim/ablation.hpp"
#include "tools/ubep/sim/report.hpp"
#include "tools/ubep/sim/sensitivity.hpp"
#include "tools/ubep/sim/trace.hpp"

namespace ubep::tools {
namespace {

using Json = nlohmann::ordered_json;

SimCost cost_since(std::chrono::steady_clock::time_point start, std::uint64_t events) {
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return {wall.count(), static_cast<double>(usage.ru_maxrss) / (1 << 20), events};
}

// Each step has its own, or there is one of it.
void refuse_with_ablate(const CLI::App& app) {
  for (const char* option : {"--path", "--compare", "--sweep", "--protocol", "--layout",
                             "--payload", "--variants", "--jobs", "--trace", "--sensitivity"}) {
    if (app.count(option) != 0) {
      throw InputError(fmt::format("{} has no meaning with --ablate", option));
    }
  }
  if (app.count("--roles") != 0 && app.count("--lanes") == 0) {
    throw InputError("--roles with --ablate needs --lanes");
  }
}

// On the first variant of the pod.
Json run_ablation(const SimPlan& plan, std::FILE* out) {
  std::vector<int> lanes(kAblationLanes.begin(), kAblationLanes.end());
  if (plan.lanes != 0) lanes = {plan.lanes};
  std::vector<sim::LayerOptions> runs;
  for (const std::uint64_t seed : plan.seeds) {
    runs.push_back(
        plan.options(plan.tokens.front(), plan.paths.front(), plan.variants.front(), seed));
    runs.back().topk_idx = plan.make_choices(plan.tokens.front(), seed);
  }
  const std::vector<AblationEntry> entries = ablate(std::move(runs), lanes);
  fmt::print(out, "{}, {} tokens\n", shape_text(plan), plan.tokens.front());
  fmt::print(out, "times: the slowest rank; p50 and noise over {} seeds\n", plan.seeds.size());
  print_ablation(entries, out);
  Json json = {{"schema", "ubep-sim-ablation/1"},
               {"pod", plan.variants.front().pod.name},
               {"config", config_json(plan)}};
  json["ablation"] = to_json(entries);
  return json;
}

// Of the first path, variant and seed.
void write_trace(const SimPlan& plan, const std::string& path, std::FILE* out) {
  sim::LayerOptions options = plan.options(plan.tokens.front(), plan.paths.front(),
                                           plan.variants.front(), plan.seeds.front());
  options.topk_idx = plan.make_choices(options.tokens, options.seed);
  std::vector<sim::LaneSlice> slices;
  options.slices = &slices;
  const sim::LayerResult result = sim::run_layer(options);
  write_file(path, trace_json(result, slices));
  fmt::print(out, "trace of {}, variant {}, seed {}: {} slices\n", plan.paths.front().text,
             plan.variants.front().name, options.seed, slices.size());
}

Json run_sensitivity(const SimPlan& plan, const std::string& path, std::FILE* out) {
  const Sensitivity s = measure_sensitivity(plan);
  print_sensitivity(s, out);
  write_file(path,
             tornado_svg(s, fmt::format("{}, {} tokens", shape_text(plan), plan.tokens.front())));
  return to_json(s);
}

struct Outcome {
  Json json;
  bool right = true;
};

Outcome run_points(const SimPlan& plan, bool lists_variants, std::FILE* out) {
  const auto start = std::chrono::steady_clock::now();
  const SimGrid grid(plan);
  const std::vector<SimPoint> points = points_of(plan, grid);
  const SimCost cost = cost_since(start, grid.events());
  print_points(plan, points, lists_variants, out);
  print_cost(cost, out);
  Outcome outcome{.json = to_json(plan, points, lists_variants, cost)};
  for (const SimPoint& point : points) {
    for (const PathFigures& path : point.paths) outcome.right &= path.wrong_rows == 0;
  }
  return outcome;
}

void check_files(const CLI::App& app, const SimCommand& command) {
  if (app.count("--json") > 0 && command.json != "-") check_writable(command.json);
  if (app.count("--trace") > 0) check_writable(command.trace, "--trace");
  if (app.count("--sensitivity") > 0) check_writable(command.sensitivity, "--sensitivity");
  const std::array files = {&command.json, &command.trace, &command.sensitivity};
  for (const std::string* file : files) {
    const auto same = [&](const std::string* other) { return *other == *file; };
    if (file->empty() || std::count_if(files.begin(), files.end(), same) == 1) continue;
    throw InputError(fmt::format("two results would be written to '{}'", *file));
  }
}

}  // namespace

int run_sim(const CLI::App& app, const SimCommand& command) {
  if (command.ablate) refuse_with_ablate(app);
  SimPlan plan = make_plan(app, command);
  if (command.ablate)
    plan.variants.resize(1);  // each step of each variant would be too much to read
  check_files(app, command);
  std::FILE* const out = command.json == "-" ? stderr : stdout;
  Outcome outcome = command.ablate ? Outcome{.json = run_ablation(plan, out)}
                                   : run_points(plan, command.list_variants, out);
  if (!command.trace.empty()) write_trace(plan, command.trace, out);
  if (!command.sensitivity.empty()) {
    outcome.json["sensitivity"] = run_sensitivity(plan, command.sensitivity, out);
  }
  if (command.json == "-") {
    fmt::print("{}\n", outcome.json.dump(2));
  } else if (!command.json.empty()) {
    write_file(command.json, outcome.json.dump(2) + "\n");
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw InputError("the result could not be written to standard output");
  }
  return outcome.right ? kOk : kCheckFailed;
}

}  // namespace ubep::tools
