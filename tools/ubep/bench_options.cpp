#include "tools/ubep/bench_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tools/ubep/ablation.hpp"
#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/enum_option.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/option_checks.hpp"
#include "tools/ubep/presets.hpp"

namespace ubep::tools {
namespace {

constexpr int kMaxRanks = 64;

Path path_of(const std::string& text, const char* option) {
  return one_of(text, option,
                {Path::automatic, Path::read, Path::pull, Path::push, Path::bsp, Path::allgather,
                 Path::relay});
}

Layout layout_of(const std::string& text, const char* option) {
  return one_of(text, option, {Layout::rank_major, Layout::expert_major, Layout::expert_padded});
}

BenchPath bench_path(const std::string& item, Layout layout, const char* option) {
  BenchPath path{.text = item};
  const auto parts = split(item, '@');
  if (parts.size() > 2) throw InputError("--compare: '" + item + "' is not path[@layout]");
  path.layout = parts.size() == 2 ? layout_of(parts[1], "--compare") : layout;
  path.path = path_of(parts[0], option);
  const bool by_token = path.path == Path::read || path.path == Path::allgather;
  const Layout needed = by_token ? Layout::rank_major : Layout::expert_major;
  if ((by_token || path.path == Path::bsp) && path.layout != needed) {
    throw InputError(fmt::format("path {} needs layout {}, not {}", name(path.path), name(needed),
                                 name(path.layout)));
  }
  return path;
}

void resolve_points(const CLI::App& app, BenchOptions& o) {
  std::vector<int> preset_tokens;
  if (!o.preset.empty()) {
    const Preset preset = find_preset(o.preset);
    if (app.count("--hidden") == 0) o.hidden = preset.hidden;
    if (app.count("--experts") == 0) o.experts = preset.experts;
    if (app.count("--topk") == 0) o.topk = preset.topk;
    preset_tokens = preset.tokens_per_rank;
  }
  o.ranks_list = {o.ranks};
  if (!o.compare_ranks.empty()) {
    if (app.count("--ranks") > 0)
      throw InputError("--ranks and --compare-ranks exclude each other");
    o.ranks_list = parse_numbers(o.compare_ranks, "--compare-ranks", 1, kMaxRanks);
  }
  if (!preset_tokens.empty() && app.count("--tokens") == 0) {
    for (int tokens : preset_tokens) o.token_list.push_back({tokens});
  } else {
    o.token_list = {parse_numbers(o.tokens, "--tokens", 0, 1 << 20)};
  }
  for (const auto& tokens : o.token_list) {
    for (int ranks : o.ranks_list) {
      if (tokens.size() == 1 || tokens.size() == static_cast<std::size_t>(ranks)) continue;
      throw InputError(
          fmt::format("--tokens has {} numbers, expected 1 or one for each of the {} "
                      "ranks",
                      tokens.size(), ranks));
    }
  }
}

// Steps differ in path and lanes, and in nothing else.
void resolve_ablation(const CLI::App& app, BenchOptions& o) {
  for (const char* other : {"--path", "--compare", "--explain", "--protocol"}) {
    const CLI::Option* option = app.get_option_no_throw(other);
    if (option == nullptr || option->count() == 0) continue;
    throw InputError(fmt::format("{} and --ablate exclude each other", other));
  }
  if (app.count("--layout") > 0 && layout_of(o.layout, "--layout") != Layout::expert_major) {
    throw InputError(fmt::format("--ablate needs layout expert_major, not {}", o.layout));
  }
  if (app.count("--activations") == 0) o.activations = "copied";
  if (o.activations == "both") {
    throw InputError("--ablate needs --activations in-place or copied, not both");
  }
  if (app.count("--lanes") == 0) o.lanes_list.assign(kAblationLanes.begin(), kAblationLanes.end());
}

}  // namespace

void add_bench_options(CLI::App& app, BenchOptions& o) {
  app.add_option("--ranks", o.ranks, "ranks to fork, 1..64")->capture_default_str();
  app.add_option("--tokens", o.tokens, "tokens per rank: a number, or one per rank: 7,0,19")
      ->capture_default_str();
  app.add_option("--hidden", o.hidden, "elements of a row")->capture_default_str();
  app.add_option("--topk", o.topk, "experts per token, 1..64")->capture_default_str();
  app.add_option("--experts", o.experts, "experts of all ranks")->capture_default_str();
  app.add_option("--dtype", o.dtype, "bf16, fp16 or fp32")->capture_default_str();
  app.add_option("--quant", o.quant,
                 "dispatched rows: none, fp8, fp8_pow2, fp8_ue8m0, int8 or mxfp8")
      ->capture_default_str();
  app.add_option("--layout", o.layout, "rank_major, expert_major or expert_padded")
      ->capture_default_str();
  app.add_option("--path", o.path,
                 "auto, read, pull, push or relay; bsp and allgather, the baselines")
      ->capture_default_str();
  app.add_option("--protocol", o.protocol,
                 "of pushed rows: auto, put-with-signal, tff-16, tff-128, tff-512, dc, dc:ROWS, sp "
                 "or fence")
      ->capture_default_str();
  app.add_option("--store", o.store, "auto, near or far")->capture_default_str();
  app.add_option("--activations", o.activations,
                 "x written into the library's buffer (in-place), copied from an own one, or both")
      ->capture_default_str();
  app.add_option("--lanes", o.lanes, "threads per rank that step")->capture_default_str();
  app.add_option("--roles", o.roles, "lanes that count, send and receive, e.g. 1:2:1 of 4, or auto")
      ->capture_default_str();
  app.add_option("--slots", o.slots, "dispatches in flight, 1..16")->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens,
                 "reserved tokens per rank; more are sent in rounds (0: as many as sent)");
  app.add_option("--routing", o.routing, "uniform, zipf:S, hot:N or file:PATH")
      ->capture_default_str();
  app.add_option("--tensor", o.tensor, "name of the tensor in --routing file:")
      ->capture_default_str();
  app.add_option("--iters", o.iters, "measured iterations")->capture_default_str();
  app.add_option("--warmup", o.warmup, "iterations before them")->capture_default_str();
  app.add_option("--seed", o.seed, "of routing and activations")
      ->check(kSeed)
      ->capture_default_str();
  app.add_flag("--check", o.check, "compare every received and combined byte with the reference");
  app.add_option("--preset", o.preset, "shape of a model, e.g. qwen3-30b-decode");
  app.add_option("--compare", o.compare, "measure these in turn: path[@layout],...");
  app.add_option("--compare-ranks", o.compare_ranks, "measure with these numbers of ranks: 2,8");
  app.add_flag("--ablate", o.ablate,
               "measure bsp and each mechanism on top of it in turn, with 1, 4, 8 and 16 lanes "
               "(or --lanes), and what the lanes' time went to");
  app.add_flag("--explain", o.explain, "say why each path and store policy was taken");
  app.add_option("--json", o.json, "write the result as JSON to a file, or - for standard output");
}

void resolve_bench_options(const CLI::App& app, BenchOptions& o) {
  o.dtype_value = dtype_of(o.dtype);
  o.quant_value = quant_of(o.quant);
  o.protocol_value = protocol_of(o.protocol);
  o.store_value = one_of(o.store, "--store", {Store::automatic, Store::near, Store::far});
  if (o.activations != "in-place" && o.activations != "copied" && o.activations != "both") {
    throw InputError("--activations: '" + o.activations + "' is not one of in-place, copied, both");
  }
  if (o.quant_value != Quant::none) {
    // The library's buffer holds rows as they travel.
    if (o.activations == "in-place") throw InputError("--activations in-place excludes --quant");
    o.activations = "copied";
  }
  resolve_points(app, o);
  if (app.count("--json") > 0 && o.json != "-") check_writable(o.json);
  if (app.count("--compare") > 0 && o.compare.empty()) throw InputError("--compare: nothing given");
  const auto check = [](const char* option, int value, int low, int high) {
    if (value < low || value > high) {
      throw InputError(fmt::format("{} is {}, expected {}..{}", option, value, low, high));
    }
  };
  for (int ranks : o.ranks_list) check("--ranks", ranks, 1, kMaxRanks);
  check("--hidden", o.hidden, 1, 1 << 20);
  check("--topk", o.topk, 1, 64);
  check("--experts", o.experts, 1, 65535);
  check("--lanes", o.lanes, 1, 64);
  check("--slots", o.slots, 1, 16);
  check("--iters", o.iters, 1, 1'000'000);
  check("--warmup", o.warmup, 0, 1'000'000);
  check("--max-tokens", o.max_tokens, 0, 1 << 20);
  if (o.ablate && app.count("--roles") > 0 && app.count("--lanes") == 0) {
    throw InputError("--ablate with --roles needs --lanes");
  }
  o.roles_value = parse_roles(o.roles, o.lanes);
  o.lanes_list = {o.lanes};
  if (o.ablate) return resolve_ablation(app, o);
  const Layout layout = layout_of(o.layout, "--layout");
  if (o.compare.empty()) {
    o.paths = {bench_path(o.path, layout, "--path")};
    return;
  }
  if (app.count("--path") > 0) throw InputError("--path and --compare exclude each other");
  for (const std::string& item : split(o.compare, ','))
    o.paths.push_back(bench_path(item, layout, "--compare"));
  const auto pushes = [](const BenchPath& path) {
    return path.path == Path::push || path.path == Path::automatic;
  };
  if (app.count("--protocol") > 0 && std::none_of(o.paths.begin(), o.paths.end(), pushes)) {
    throw InputError("--protocol is of pushed rows, and no path here pushes");
  }
}

}  // namespace ubep::tools
