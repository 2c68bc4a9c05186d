#include "tools/ubep/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace ubep::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Operation {
  const char* name;
  std::optional<Timing> PathResult::*timing;
};
constexpr std::array<Operation, 4> kOperations = {{{"dispatch", &PathResult::dispatch},
                                                   {"combine", &PathResult::combine},
                                                   {"round_trip", &PathResult::round_trip},
                                                   {"cycle", &PathResult::cycle}}};

double rounded(double value) { return std::round(value * 1000) / 1000; }

// p50 over the first path's; nothing when either was not measured or took no time.
std::optional<double> ratio_to_first(const std::optional<Timing>& timing,
                                     const std::optional<Timing>& first) {
  if (!timing || !first || first->us.p50 <= 0) return std::nullopt;
  return timing->us.p50 / first->us.p50;
}

void put(Json& json, const char* name, const std::optional<double>& value) {
  if (value) json[name] = rounded(*value);
}

Json timing_json(const Timing& timing) {
  Json json = {{"avg", rounded(timing.us.avg)},
               {"min", rounded(timing.us.min)},
               {"p50", rounded(timing.us.p50)},
               {"p99", rounded(timing.us.p99)},
               {"max", rounded(timing.us.max)}};
  put(json, "wire_gbps", timing.wire_gbps);
  put(json, "dedup_gbps", timing.dedup_gbps);
  return json;
}

Json path_json(const PathResult& path, const PathResult& first) {
  Json json = {{"path", path.path},     {"variant", path.variant},
               {"store", path.store},   {"protocol", path.protocol},
               {"layout", path.layout}, {"chosen_by", path.chosen_by},
               {"reason", path.reason}};
  Json ratios = Json::object();
  for (const auto& [name, timing] : kOperations) {
    if (path.*timing) json[name] = timing_json(*(path.*timing));
    put(ratios, name, ratio_to_first(path.*timing, first.*timing));
  }
  json["ratio_to_first"] = ratios;
  if (path.copies) {
    json["payload_copies"] = {{"dispatch", rounded(path.copies->dispatch)},
                              {"combine", rounded(path.copies->combine)}};
  }
  if (path.crossed) {
    json["between_hosts"] = {{"bytes_per_cycle", rounded(path.crossed->bytes)},
                             {"minimum_bytes_per_cycle", rounded(path.crossed->minimum_bytes)}};
    put(json["between_hosts"], "bytes_over_minimum", path.crossed->ratio());
  }
  if (path.roles) {
    json["roles"] = {
        {"count", path.roles->count}, {"send", path.roles->send}, {"receive", path.roles->receive}};
  }
  if (path.time_share) {
    json["time_share"] = {{"copy", rounded(path.time_share->copy)},
                          {"wait_flag", rounded(path.time_share->wait_flag)},
                          {"wait_base", rounded(path.time_share->wait_base)},
                          {"barrier", rounded(path.time_share->barrier)},
                          {"idle", rounded(path.time_share->idle)}};
  }
  return json;
}

Json point_json(const Point& point) {
  Json json = {{"ranks", point.ranks},
               {"tokens", point.tokens},
               {"load",
                {{"expert_max_over_mean", rounded(point.load.expert_max_over_mean)},
                 {"rank_max_over_mean", rounded(point.load.rank_max_over_mean)}}}};
  if (point.hosts) {
    json["hosts"] = {{"of_rank", point.hosts->of_rank},
                     {"names", point.hosts->names},
                     {"transport", point.hosts->transport},
                     {"times_us", "the longest of any rank's own clock"}};
  }
  if (point.rounds) json["rounds"] = *point.rounds;
  if (point.memory) {
    json["memory"] = {{"reserved", point.memory->reserved}, {"resident", point.memory->resident}};
  }
  put(json, "first_call_us", point.first_call_us);
  put(json, "cores_used", point.cores_used);
  if (point.check) {
    json["check"] = {{"passed", point.check->passed},
                     {"mismatches", point.check->mismatches},
                     {"calc_diff", point.check->calc_diff}};
  }
  json["paths"] = Json::array();
  for (const PathResult& path : point.paths) {
    json["paths"].push_back(path_json(path, point.paths.front()));
  }
  if (!point.ablation.empty()) json["ablation"] = to_json(point.ablation);
  return json;
}

Json machine_json(const Machine& machine, const std::optional<PlacementProbe>& after) {
  Json json = {{"cpus", machine.cpus},
               {"model", machine.model},
               {"placement", placement_name(machine.probe.placement)}};
  put(json, "flag_one_way_ns", machine.probe.flag_one_way_ns);
  if (after) {
    json["placement_after"] = placement_name(after->placement);
    put(json, "flag_one_way_ns_after", after->flag_one_way_ns);
  }
  return json;
}

Json config_json(const BenchConfig& config) {
  const Json lanes = config.lanes.size() == 1 ? Json(config.lanes[0]) : Json(config.lanes);
  return {{"hidden", config.hidden}, {"topk", config.topk},   {"experts", config.experts},
          {"dtype", config.dtype},   {"quant", config.quant}, {"routing", config.routing},
          {"lanes", lanes},          {"slots", config.slots}, {"iters", config.iters},
          {"seed", config.seed}};
}

// The cells of the table.

std::string probe_cell(const PlacementProbe& probe) {
  const std::string_view name = placement_name(probe.placement);
  if (!probe.flag_one_way_ns) return fmt::format("placement {}", name);
  return fmt::format("placement {}, flag {:.0f} ns one way", name, *probe.flag_one_way_ns);
}

std::string tokens_cell(const std::vector<int>& tokens) {
  if (tokens.empty()) return "-";
  const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
  return *low == *high ? fmt::format("{}", *low) : fmt::format("{}-{}", *low, *high);
}

std::string number_cell(const std::optional<double>& value, int decimals) {
  return value ? fmt::format("{:.{}f}", *value, decimals) : "-";
}

std::string time_cell(const std::optional<Timing>& timing) {
  if (!timing) return "-";
  return fmt::format("{:.1f} ({:.1f})", timing->us.p50, timing->us.p99);
}

// "dispatch/combine" of one of the two rates.
std::string rate_cell(const PathResult& path, std::optional<double> Timing::*rate) {
  const auto cell = [&](const std::optional<Timing>& timing) {
    return number_cell(timing ? (*timing).*rate : std::nullopt, 1);
  };
  return cell(path.dispatch) + "/" + cell(path.combine);
}

std::string copies_cell(const std::optional<Copies>& copies) {
  return copies ? fmt::format("{:.2f}/{:.2f}", copies->dispatch, copies->combine) : "-";
}

std::string crossed_cell(const std::optional<Crossed>& crossed) {
  if (!crossed) return "";
  const std::string ratio = number_cell(crossed->ratio(), 3);
  return fmt::format("{:>17}", fmt::format("{:.1f} ({})", crossed->bytes / 1024, ratio));
}

// The last column is only there where ranks may be on several hosts.
constexpr std::string_view kRowFormat =
    "{:>5} {:>9}  {:<29} {:<5} {:>9} {:>17} {:>17} {:>17} {:>17} {:>11} {:>11} {:>11}{}\n";

void print_heading(bool hosts, std::FILE* out) {
  fmt::print(
      out,
      "times in us: p50 (p99); copies of each received row and GB/s: dispatch/combine; x first: "
      "round trip/cycle\n");
  if (hosts) {
    fmt::print(out,
               "several hosts: a time is the longest that any rank took by its own clock; crossed: "
               "KiB between hosts in a dispatch and its combine (over the least possible)\n");
  }
  fmt::print(out, kRowFormat, "ranks", "tokens", "path@layout", "store", "copies", "dispatch",
             "combine", "round trip", "cycle", "wire GB/s", "dedup GB/s", "x first",
             hosts ? fmt::format("{:>17}", "crossed") : "");
}

void print_path(const Point& point, const PathResult& path, std::FILE* out) {
  const PathResult& first = point.paths.front();
  const std::string variant = path.variant.empty() ? "" : ":" + path.variant;
  fmt::print(out, kRowFormat, point.ranks, tokens_cell(point.tokens),
             path.path + variant + "@" + path.layout, path.store, copies_cell(path.copies),
             time_cell(path.dispatch), time_cell(path.combine), time_cell(path.round_trip),
             time_cell(path.cycle), rate_cell(path, &Timing::wire_gbps),
             rate_cell(path, &Timing::dedup_gbps),
             number_cell(ratio_to_first(path.round_trip, first.round_trip), 2) + "/" +
                 number_cell(ratio_to_first(path.cycle, first.cycle), 2),
             crossed_cell(path.crossed));
}

}  // namespace

nlohmann::ordered_json to_json(const BenchResult& result) {
  Json json = {{"schema", "ubep-bench/1"},
               {"version", result.version},
               {"machine", machine_json(result.machine, result.probe_after)},
               {"config", config_json(result.config)}};
  json["points"] = Json::array();
  for (const Point& point : result.points) json["points"].push_back(point_json(point));
  return json;
}

void print_table(const BenchResult& result, std::FILE* out) {
  const Machine& machine = result.machine;
  const BenchConfig& config = result.config;
  fmt::print(out, "machine  {} CPUs, {}, {}{}\n", machine.cpus,
             machine.model.empty() ? "unknown model" : machine.model, probe_cell(machine.probe),
             result.probe_after ? "; afterwards " + probe_cell(*result.probe_after) : "");
  fmt::print(out,
             "config   hidden {}, top-{} of {} experts, {}, quant {}, routing {}, lanes {}, slots "
             "{}, iters {}, seed {}\n",
             config.hidden, config.topk, config.experts, config.dtype, config.quant, config.routing,
             fmt::join(config.lanes, ","), config.slots, config.iters, config.seed);
  if (config.quant != "none") {
    fmt::print(
        out,
        "quant    made once for each token; dispatch gains, the cycle pays for experts that turn "
        "rows back (docs/formats.md)\n");
  }
  const auto ablates = [](const Point& point) { return !point.ablation.empty(); };
  const bool hosts = std::any_of(result.points.begin(), result.points.end(),
                                 [](const Point& point) { return point.hosts.has_value(); });
  if (!std::any_of(result.points.begin(), result.points.end(), ablates)) print_heading(hosts, out);
  for (const Point& point : result.points) {
    for (const PathResult& path : point.paths) print_path(point, path, out);
    print_ablation(point.ablation, out);
    if (point.check && !point.check->passed) {
      fmt::print(out, "      CHECK FAILED: {} mismatches, calc_diff {:.3g}\n",
                 point.check->mismatches, point.check->calc_diff);
    }
  }
}

}  // namespace ubep::tools
