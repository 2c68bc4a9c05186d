#include "tools/ubep/sim.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "sim/layer_run.hpp"
#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/enum_option.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/presets.hpp"
#include "tools/ubep/protocol_option.hpp"
#include "tools/ubep/routing_source.hpp"
#include "tools/ubep/sim_ablation.hpp"
#include "tools/ubep/summary.hpp"

namespace ubep::tools {
namespace {

struct Cost {
  double seconds = 0;
  double memory_gib = 0;
};

sim::LayerOptions resolve(const CLI::App& app, SimCommand& c) {
  sim::LayerOptions o;
  if (!c.preset.empty()) {
    const Preset preset = find_preset(c.preset);
    if (app.count("--hidden") == 0) c.hidden = preset.hidden;
    if (app.count("--experts") == 0) c.experts = preset.experts;
    if (app.count("--topk") == 0) c.topk = preset.topk;
    if (app.count("--tokens") == 0) c.tokens = preset.tokens_per_rank.back();
  }
  o.pod = sim::read_pod(c.pod);
  o.ranks = c.ranks == 0 ? o.pod.ranks : c.ranks;
  o.lanes = c.lanes == 0 ? o.pod.lanes : c.lanes;
  o.tokens = c.tokens;
  o.hidden = c.hidden;
  o.topk = c.topk;
  o.experts = c.experts;
  o.dtype = dtype_of(c.dtype);
  o.layout = one_of(c.layout, "--layout", {Layout::rank_major, Layout::expert_major});
  o.path =
      one_of(c.path, "--path", {Path::read, Path::pull, Path::push, Path::bsp, Path::allgather});
  const ProtocolChoice protocol = protocol_of(c.protocol);
  o.protocol = protocol.protocol;
  o.checksum_rows = protocol.checksum_rows;
  const bool pushes = o.path == Path::push && !c.ablate;  // each step of it has a protocol
  if (app.count("--protocol") == 0 && pushes) o.protocol = o.pod.protocol;
  o.moves_rows = c.payload;
  o.seed = c.seed;
  o.roles = parse_roles(c.roles, o.lanes);
  apply(c.scenario, o);
  return o;
}

// With the routing of its seed.
sim::LayerOptions seeded(sim::LayerOptions o, const SimCommand& c, std::uint64_t seed) {
  o.seed = seed;
  for (RankRouting& rank : make_routing(
           c.routing, {.num_tokens = std::vector<int>(static_cast<std::size_t>(o.ranks), o.tokens),
                      .topk = o.topk,
                      .experts = o.experts,
                      .seed = o.seed,
                      .tensor = c.tensor})) {
    o.topk_idx.push_back(std::move(rank.topk_idx));
  }
  return o;
}

void print_breakdown(const sim::LayerResult& result, std::FILE* to) {
  fmt::print(to, "us of a lane");
  for (const char* name : kActivityNames) fmt::print(to, "{:>11}", name);
  fmt::print(to, "{:>8}{:>17}\n", "sync", "last row, max");
  const auto line = [&](const char* what, const Breakdown& b) {
    fmt::print(to, "{:12}", what);
    for (const double part : b.us) fmt::print(to, "{:11.2f}", part);
    fmt::print(to, "{:7.1f}%{:8.2f}{:9.2f}\n", b.sync_share() * 100, b.last_row_mean,
               b.last_row_max);
  };
  line("dispatch", breakdown(result.ranks, &sim::RankTimes::dispatch_lanes));
  line("combine", breakdown(result.ranks, &sim::RankTimes::combine_lanes));
}

void print_shape(const sim::LayerOptions& o, const std::string& routing, std::FILE* to) {
  fmt::print(to,
             "pod {}{}: {} ranks, {} lanes; {} tokens x top-{} of {} experts, hidden {}, {}, {}, "
             "routing {}, path {}, protocol {}, seed {}{}\n",
             o.pod.name, o.pod.projection ? " (a projection)" : "", o.ranks, o.lanes, o.tokens,
             o.topk, o.experts, o.hidden, name(o.dtype), name(o.layout), routing, name(o.path),
             protocol_text({o.protocol, o.checksum_rows}), o.seed, scenario_text(o));
}

void print(const sim::LayerOptions& o, const sim::LayerResult& result, const Cost& cost,
           const std::string& routing, std::FILE* to) {
  print_shape(o, routing, to);
  fmt::print(to, "virtual us     min       p50       p99       max   over ranks\n");
  const auto line = [&](const char* what, const Summary& s) {
    fmt::print(to, "{:10}{:9.2f} {:9.2f} {:9.2f} {:9.2f}\n", what, s.min, s.p50, s.p99, s.max);
  };
  line("dispatch", microseconds(result, &sim::RankTimes::dispatch, nullptr));
  line("first read", microseconds(result, &sim::RankTimes::first_read, &sim::RankTimes::dispatch));
  line("combine", microseconds(result, &sim::RankTimes::combine, &sim::RankTimes::combine_start));
  line("all", microseconds(result, &sim::RankTimes::combine, nullptr));
  print_breakdown(result, to);
  fmt::print(to, "sent {:.3f} GB; {} events in {:.2f} s: {:.2f} M/s; {:.2f} GiB of memory\n",
             static_cast<double>(result.bytes_sent) * 1e-9, result.events, cost.seconds,
             static_cast<double>(result.events) * 1e-6 / cost.seconds, cost.memory_gib);
  if (o.moves_rows) {
    fmt::print(to, "check: {} of {} combined rows are wrong\n", result.wrong_rows,
               std::int64_t{o.ranks} * o.tokens);
  }
}

nlohmann::json shape_json(const sim::LayerOptions& o, const std::string& routing) {
  nlohmann::json json = {{"pod", o.pod.name},
                         {"ranks", o.ranks},
                         {"lanes", o.lanes},
                         {"tokens", o.tokens},
                         {"hidden", o.hidden},
                         {"topk", o.topk},
                         {"experts", o.experts},
                         {"dtype", name(o.dtype)},
                         {"layout", name(o.layout)},
                         {"routing", routing},
                         {"path", name(o.path)},
                         {"protocol", name(o.protocol)},
                         {"checksum_rows", o.checksum_rows},
                         {"seed", o.seed}};
  add_scenario(o, json);
  return json;
}

nlohmann::json lanes_json(const Breakdown& b) {
  nlohmann::json json;
  for (std::size_t i = 0; i < b.us.size(); ++i) json[kActivityNames[i]] = b.us[i];
  json["last_row_mean"] = b.last_row_mean;
  json["last_row_max"] = b.last_row_max;
  json["sync_share"] = b.sync_share();
  return json;
}

nlohmann::json to_json(const sim::LayerOptions& o, const sim::LayerResult& result, const Cost& cost,
                       const std::string& routing) {
  const auto times = [&](sim::Time sim::RankTimes::*end, sim::Time sim::RankTimes::*begin) {
    const Summary s = microseconds(result, end, begin);
    return nlohmann::json{{"min", s.min}, {"p50", s.p50}, {"p99", s.p99}, {"max", s.max}};
  };
  nlohmann::json json = shape_json(o, routing);
  json["dispatch_us"] = times(&sim::RankTimes::dispatch, nullptr);
  json["first_read_us"] = times(&sim::RankTimes::first_read, &sim::RankTimes::dispatch);
  json["combine_us"] = times(&sim::RankTimes::combine, &sim::RankTimes::combine_start);
  json["total_us"] = times(&sim::RankTimes::combine, nullptr);
  json["dispatch_lanes_us"] = lanes_json(breakdown(result.ranks, &sim::RankTimes::dispatch_lanes));
  json["combine_lanes_us"] = lanes_json(breakdown(result.ranks, &sim::RankTimes::combine_lanes));
  const Roles roles = result.ranks[0].roles;
  json["roles"] = {roles.count, roles.send, roles.receive};
  json["bytes_sent"] = result.bytes_sent;
  json["events"] = result.events;
  json["wall_s"] = cost.seconds;
  json["memory_gib"] = cost.memory_gib;
  if (o.moves_rows) json["check"] = {{"wrong_rows", result.wrong_rows}};
  return json;
}

Cost cost_since(std::chrono::steady_clock::time_point start) {
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return {wall.count(), static_cast<double>(usage.ru_maxrss) / (1 << 20)};
}

// Each step has its own.
void refuse_with_ablate(const CLI::App& app) {
  for (const char* option : {"--path", "--protocol", "--layout", "--payload"}) {
    if (app.count(option) != 0) {
      throw InputError(fmt::format("{} has no meaning with --ablate", option));
    }
  }
  if (app.count("--roles") != 0 && app.count("--lanes") == 0) {
    throw InputError("--roles with --ablate needs --lanes");
  }
}

}  // namespace

void add_sim_options(CLI::App& app, SimCommand& c) {
  const auto count = CLI::Range(1, 1 << 20);
  const CLI::Validator seed(  // digits only: a minus sign would wrap around
      [](const std::string& text) -> std::string {
        const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
        return !text.empty() && digits && text.size() < 19
                   ? ""
                   : fmt::format("'{}' is not a number of up to 18 digits", text);
      },
      "NUMBER");
  app.add_option("--pod", c.pod,
                 fmt::format("{}; or a file that describes one, FOLDER/NAME.json",
                             fmt::join(sim::pod_names(), ", ")))
      ->required();
  app.add_option("--ranks", c.ranks, "ranks that take part (all of the pod)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--lanes", c.lanes, "lanes of each rank (the pod's)")->check(CLI::Range(1, 64));
  app.add_option("--tokens", c.tokens, "tokens of each rank")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  app.add_option("--hidden", c.hidden, "elements of a row")->check(count)->capture_default_str();
  app.add_option("--topk", c.topk, "experts per token")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--experts", c.experts, "experts of all ranks")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_option("--preset", c.preset, "shape of a model, e.g. deepseek-v3-decode");
  app.add_option("--dtype", c.dtype, "bf16, fp16 or fp32")->capture_default_str();
  app.add_option("--layout", c.layout, "rank_major or expert_major")->capture_default_str();
  app.add_option("--path", c.path, "push or pull; read or allgather, with --layout rank_major; bsp")
      ->capture_default_str();
  app.add_option("--roles", c.roles,
                 "lanes that count, send and receive first: auto, or e.g. 1:40:7")
      ->capture_default_str();
  app.add_option("--routing", c.routing, "uniform, zipf:S, hot:N or file:PATH")
      ->capture_default_str();
  app.add_option("--tensor", c.tensor, "name of the tensor in --routing file:")
      ->capture_default_str();
  app.add_option("--protocol", c.protocol,
                 "of pushed rows: auto, put-with-signal, tff-16, tff-128, tff-512, dc, dc:ROWS, sp "
                 "or fence")
      ->capture_default_str();
  app.add_option("--seed", c.seed, "of routing and jitter")->check(seed)->capture_default_str();
  app.add_flag("--ablate", c.ablate,
               "bsp, then each mechanism on top, with 1, 4, 8 and 16 lanes (or --lanes)");
  app.add_option("--seeds", c.seeds, "of --ablate: so many, from --seed on")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--payload", c.payload, "move the rows, too, and compare what comes back");
  add_scenario_options(app, c.scenario);
  app.add_option("--json", c.json, "write the result as JSON to a file, or - for standard output");
}

int run_sim(const CLI::App& app, SimCommand& command) {
  if (command.ablate) refuse_with_ablate(app);
  if (!command.ablate && app.count("--seeds") != 0) throw InputError("--seeds needs --ablate");
  if (app.count("--tensor") != 0 && !command.routing.starts_with("file:")) {
    throw InputError("--tensor needs --routing file:");
  }
  const sim::LayerOptions options = seeded(resolve(app, command), command, command.seed);
  if (app.count("--json") > 0 && command.json != "-") check_writable(command.json);
  std::FILE* const out = command.json == "-" ? stderr : stdout;
  const auto start = std::chrono::steady_clock::now();
  nlohmann::json json;
  std::int64_t wrong_rows = 0;
  if (command.ablate) {
    std::vector<int> lanes(kAblationLanes.begin(), kAblationLanes.end());
    if (command.lanes != 0) lanes = {command.lanes};
    std::vector<sim::LayerOptions> runs;
    for (int i = 0; i < command.seeds; ++i) {
      runs.push_back(
          seeded(resolve(app, command), command, command.seed + static_cast<std::uint64_t>(i)));
    }
    const std::vector<AblationEntry> entries = ablate(std::move(runs), lanes);
    print_shape(options, command.routing, out);
    fmt::print(out, "times: the slowest rank; p50 and noise over {} seeds\n", command.seeds);
    print_ablation(entries, out);
    json = shape_json(options, command.routing);
    json["ablation"] = to_json(entries);
  } else {
    const sim::LayerResult result = sim::run_layer(options);
    const Cost cost = cost_since(start);
    print(options, result, cost, command.routing, out);
    json = to_json(options, result, cost, command.routing);
    wrong_rows = result.wrong_rows;
  }
  if (command.json == "-") {
    fmt::print("{}\n", json.dump(2));
  } else if (!command.json.empty()) {
    write_file(command.json, json.dump(2) + "\n");
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw InputError("the result could not be written to standard output");
  }
  return wrong_rows == 0 ? kOk : kCheckFailed;
}

}  // namespace ubep::tools
