#include "tools/ubep/sim/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "tools/ubep/enum_option.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/option_checks.hpp"
#include "tools/ubep/presets.hpp"
#include "tools/ubep/routing_source.hpp"

namespace ubep::tools {
namespace {

constexpr int kMostTokens = 1 << 16;

void add_shape_options(CLI::App& app, SimCommand& c) {
  const auto count = CLI::Range(1, 1 << 20);
  app.add_option("--hidden", c.hidden, "elements of a row")->check(count)->capture_default_str();
  app.add_option("--topk", c.topk, "experts per token")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--experts", c.experts, "experts of all ranks")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_option("--preset", c.preset, "shape of a model, e.g. deepseek-v3-decode");
  app.add_option("--layout", c.layout, "rank_major or expert_major")->capture_default_str();
}

void add_way_options(CLI::App& app, SimCommand& c) {
  app.add_option("--path", c.path, "push or pull; read or allgather, with --layout rank_major; bsp")
      ->capture_default_str();
  app.add_option("--compare", c.compare,
                 "several paths, e.g. bsp,push,pull; push may name a protocol: push:tff-512");
  app.add_option("--roles", c.roles,
                 "lanes that count, send and receive first: auto, or e.g. 1:40:7")
      ->capture_default_str();
}

// With the shape of --preset where no option says otherwise.
SimCommand with_preset(const CLI::App& app, SimCommand c) {
  if (c.preset.empty()) return c;
  const Preset preset = find_preset(c.preset);
  if (app.count("--hidden") == 0) c.hidden = preset.hidden;
  if (app.count("--experts") == 0) c.experts = preset.experts;
  if (app.count("--topk") == 0) c.topk = preset.topk;
  if (app.count("--tokens") == 0) c.tokens = preset.tokens_per_rank.back();
  return c;
}

void refuse_meaningless(const CLI::App& app, const SimCommand& c, const SimPlan& plan) {
  if (app.count("--tensor") != 0 && !c.routing.starts_with("file:")) {
    throw InputError("--tensor needs --routing file:");
  }
  if (app.count("--compare") != 0 && app.count("--path") != 0) {
    throw InputError("--path has no meaning with --compare");
  }
  if (app.count("--sweep") != 0 && app.count("--tokens") != 0) {
    throw InputError("--tokens has no meaning with --sweep tokens=");
  }
  for (const char* option : {"--trace", "--sensitivity"}) {
    if (app.count(option) == 0 || plan.tokens.size() == 1) continue;
    throw InputError(fmt::format("{} is of one point, --sweep has {}", option, plan.tokens.size()));
  }
  const auto is_bsp = [](const Contender& path) { return path.path == Path::bsp; };
  if (app.count("--roles") != 0 && std::all_of(plan.paths.begin(), plan.paths.end(), is_bsp)) {
    throw InputError("--roles has no meaning with path bsp");
  }
  const auto names_none = [](const Contender& path) { return path.text == name(Path::push); };
  if (app.count("--protocol") != 0 && app.count("--compare") != 0 &&
      std::none_of(plan.paths.begin(), plan.paths.end(), names_none)) {
    throw InputError("--protocol has no meaning with --compare unless it has push without one");
  }
}

}  // namespace

void add_pod_options(CLI::App& app, SimCommand& c) {
  app.add_option("--pod", c.pod,
                 fmt::format("{}; or a file that describes one, FOLDER/NAME.json",
                             fmt::join(sim::pod_names(), ", ")));
  app.add_option("--variant", c.variant, "the only one of the pod's variants that is run");
  app.add_option("--ranks", c.ranks, "ranks that take part (all of the pod)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--lanes", c.lanes, "lanes of each rank (the pod's)")->check(CLI::Range(1, 64));
  app.add_option("--tokens", c.tokens, "tokens of each rank")
      ->check(CLI::Range(0, kMostTokens))
      ->capture_default_str();
  app.add_option("--dtype", c.dtype, "bf16, fp16 or fp32")->capture_default_str();
  app.add_option("--routing", c.routing, "uniform, zipf:S, hot:N or file:PATH")
      ->capture_default_str();
  app.add_option("--tensor", c.tensor, "name of the tensor in --routing file:")
      ->capture_default_str();
  app.add_option("--protocol", c.protocol,
                 "of pushed rows: auto, put-with-signal, tff-16, tff-128, tff-512, dc, dc:ROWS, sp "
                 "or fence")
      ->capture_default_str();
  add_scenario_options(app, c.scenario);
}

void add_run_options(CLI::App& app, SimCommand& c) {
  app.add_option("--seed", c.seed, "of routing and jitter")->check(kSeed)->capture_default_str();
  app.add_option("--seeds", c.seeds, "so many, from --seed on")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--jobs", c.jobs, "runs at the same time; the result is the same")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--json", c.json, "write the result as JSON to a file, or - for standard output");
}

void add_sim_options(CLI::App& app, SimCommand& c) {
  add_pod_options(app, c);
  add_shape_options(app, c);
  add_way_options(app, c);
  app.add_option("--sweep", c.sweep, "tokens=8,16,32: a point for each");
  add_run_options(app, c);
  app.add_flag("--variants", c.list_variants, "show the result of each variant of the pod");
  app.add_flag("--ablate", c.ablate,
               "bsp, then each mechanism on top, with 1, 4, 8 and 16 lanes (or --lanes)");
  app.add_flag("--payload", c.payload, "move the rows, too, and compare what comes back");
  app.add_option("--trace", c.trace,
                 "write what each lane did when to a file for Perfetto, of the first path, variant "
                 "and seed");
  app.add_option(
      "--sensitivity", c.sensitivity,
      "what each of the pod's numbers moves, a fifth less and more: a table, and a chart "
      "in an SVG file");
}

std::vector<sim::PodVariant> find_variants(const SimCommand& c) {
  if (c.pod.empty()) throw InputError("--pod is required");
  std::vector<sim::PodVariant> variants = sim::read_pod_variants(c.pod);
  if (c.variant.empty()) return variants;
  std::vector<std::string> names;
  for (sim::PodVariant& variant : variants) {
    if (variant.name == c.variant) return {std::move(variant)};
    names.push_back(variant.name);
  }
  throw InputError(
      fmt::format("--variant: '{}' is not one of {}", c.variant, fmt::join(names, ", ")));
}

void check_runs(const SimPlan& plan) {
  for (const Contender& path : plan.paths) {
    for (const sim::PodVariant& variant : plan.variants) {
      for (const int tokens : plan.tokens) {
        sim::check_layer(plan.options(tokens, path, variant, plan.seeds.front()));
      }
    }
  }
}

std::vector<Contender> parse_contenders(const std::string& text,
                                        const std::optional<ProtocolChoice>& protocol) {
  std::vector<Contender> all;
  for (const std::string& part : split(text, ',')) {
    const std::size_t colon = part.find(':');
    Contender c{.text = part};
    c.path = one_of(part.substr(0, colon), "--compare",
                    {Path::read, Path::pull, Path::push, Path::bsp, Path::allgather});
    if (c.path == Path::push) c.protocol = protocol;
    if (colon != std::string::npos) {
      if (c.path != Path::push) {
        throw InputError(
            fmt::format("--compare: '{}': path {} has no protocol", part, name(c.path)));
      }
      c.protocol = protocol_of(part.substr(colon + 1));
    }
    const auto same = [&](const Contender& other) { return other.text == c.text; };
    if (std::any_of(all.begin(), all.end(), same)) {
      throw InputError(fmt::format("--compare: '{}' is there twice", part));
    }
    all.push_back(std::move(c));
  }
  return all;
}

std::vector<int> parse_token_sweep(const std::string& text) {
  const std::string key = "tokens=";
  if (!text.starts_with(key)) {
    throw InputError(fmt::format("--sweep: '{}' is not tokens=NUMBER,NUMBER,...", text));
  }
  std::vector<int> tokens =
      parse_numbers(text.substr(key.size()), "--sweep tokens", 0, kMostTokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::count(tokens.begin(), tokens.end(), tokens[i]) > 1) {
      throw InputError(fmt::format("--sweep tokens: {} is there twice", tokens[i]));
    }
  }
  return tokens;
}

sim::LayerOptions SimPlan::options(int token_count, const Contender& path,
                                   const sim::PodVariant& variant, std::uint64_t seed) const {
  sim::LayerOptions o = base;
  o.pod = variant.pod;
  o.lanes = lanes == 0 ? o.pod.lanes : lanes;
  o.tokens = token_count;
  o.path = path.path;
  if (path.path == Path::push) o.protocol = o.pod.protocol;
  if (path.protocol) {
    o.protocol = path.protocol->protocol;
    o.checksum_rows = path.protocol->checksum_rows;
  }
  if (path.path == Path::bsp) o.roles = {};
  o.seed = seed;
  apply(scenario, o);
  return o;
}

std::vector<std::vector<std::int32_t>> SimPlan::make_choices(int token_count,
                                                             std::uint64_t seed) const {
  std::vector<std::vector<std::int32_t>> choices;
  for (RankRouting& rank : make_routing(
           routing,
           {.num_tokens = std::vector<int>(static_cast<std::size_t>(base.ranks), token_count),
           .topk = base.topk,
           .experts = base.experts,
           .seed = seed,
           .tensor = tensor})) {
    choices.push_back(std::move(rank.topk_idx));
  }
  return choices;
}

SimPlan make_plan(const CLI::App& app, const SimCommand& command) {
  const SimCommand c = with_preset(app, command);
  SimPlan plan;
  plan.variants = find_variants(c);
  const sim::Pod& pod = plan.variants.front().pod;
  plan.lanes = c.lanes;
  plan.base.ranks = c.ranks == 0 ? pod.ranks : c.ranks;
  plan.base.hidden = c.hidden;
  plan.base.topk = c.topk;
  plan.base.experts = c.experts;
  plan.base.dtype = dtype_of(c.dtype);
  plan.base.layout = one_of(c.layout, "--layout", {Layout::rank_major, Layout::expert_major});
  plan.base.moves_rows = c.payload;
  plan.base.roles = parse_roles(c.roles, c.lanes == 0 ? pod.lanes : c.lanes);
  std::optional<ProtocolChoice> protocol;
  if (app.count("--protocol") != 0) protocol = protocol_of(c.protocol);
  if (app.count("--compare") != 0) {
    plan.paths = parse_contenders(c.compare, protocol);
  } else {
    const Path path =
        one_of(c.path, "--path", {Path::read, Path::pull, Path::push, Path::bsp, Path::allgather});
    plan.paths = {{.text = c.path, .path = path, .protocol = protocol}};
  }
  plan.tokens = c.sweep.empty() ? std::vector<int>{c.tokens} : parse_token_sweep(c.sweep);
  for (int i = 0; i < c.seeds; ++i) plan.seeds.push_back(c.seed + static_cast<std::uint64_t>(i));
  plan.routing = c.routing;
  plan.tensor = c.tensor;
  plan.scenario = c.scenario;
  plan.jobs = c.jobs;
  refuse_meaningless(app, c, plan);
  check_runs(plan);
  return plan;
}

}  // namespace ubep::tools
