#include "tools/ubep/sim/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ubep::tools {
namespace {

using Json = nlohmann::ordered_json;

sim::LayerOptions first_options(const SimPlan& plan) {
  return plan.options(plan.tokens.front(), plan.paths.front(), plan.variants.front(),
                      plan.seeds.front());
}

std::string roles_text(const PathFigures& path) {
  const Roles& r = path.roles;
  return fmt::format("{}:{}:{}", r.count, r.send, r.receive);
}

void print_operation(const OperationFigures& f, std::FILE* to) {
  fmt::print(to, " {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:9.2f}", f.mean, f.ensemble.low,
             f.ensemble.high, f.p50, f.p99, f.max_lane);
}

void print_table(const std::vector<SimPoint>& points, std::FILE* to) {
  constexpr const char* kColumns = " {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}";
  fmt::print(to, "{:>6} {:<16}", "tokens", "path");
  for (const char* what : {"dispatch", "combine"}) {
    fmt::print(to, fmt::runtime(kColumns), what, "5 %", "95 %", "p50", "p99", "last row");
  }
  fmt::print(to, " {:>7} {:>6}\n", "GB/s", "sync");
  for (const SimPoint& point : points) {
    for (const PathFigures& path : point.paths) {
      fmt::print(to, "{:>6} {:<16}", point.tokens, path.path);
      print_operation(path.dispatch, to);
      print_operation(path.combine, to);
      fmt::print(to, " {:7.2f} {:5.1f}%\n", path.effective_gbps, path.sync_share * 100);
    }
    fmt::print(to, "{:>6} {:<16} {:9.2f} {:>59.2f}   latency {:.2f}\n", point.tokens, "null",
               point.null.dispatch, point.null.combine, point.null.latency);
  }
}

void print_comparisons(const std::vector<SimPoint>& points, std::FILE* to) {
  const auto share = [](const Interval& i) {
    if (i.low == i.high) return fmt::format("{:5.1f} %", i.mid * 100);
    return fmt::format("{:5.1f} % [{:.1f} to {:.1f}]", i.mid * 100, i.low * 100, i.high * 100);
  };
  for (const SimPoint& point : points) {
    for (const Reduction& r : point.reductions) {
      fmt::print(to, "{:>6} {:<16} less than bsp: dispatch {}, combine {}\n", point.tokens, r.path,
                 share(r.dispatch), share(r.combine));
    }
    for (const Unranked& u : point.unranked) {
      fmt::print(to, "{:>6} cannot rank {} and {} by {}\n", point.tokens, u.a, u.b, u.operation);
    }
  }
}

void print_lanes(const SimPoint& point, std::FILE* to) {
  fmt::print(to, "{:<16} {:<9}", "us of a lane", "");
  for (const char* name : kActivityNames) fmt::print(to, "{:>11}", name);
  fmt::print(to, "{:>8}{:>10}  roles\n", "sync", "last row");
  for (const PathFigures& path : point.paths) {
    const auto line = [&](const char* what, const Breakdown& b) {
      fmt::print(to, "{:<16} {:<9}", path.path, what);
      for (const double part : b.us) fmt::print(to, "{:11.2f}", part);
      fmt::print(to, "{:7.1f}%{:10.2f}  {}\n", b.sync_share() * 100, b.last_row_mean,
                 roles_text(path));
    };
    line("dispatch", path.dispatch.lanes);
    line("combine", path.combine.lanes);
  }
}

void print_variants(const SimPlan& plan, const std::vector<SimPoint>& points, std::FILE* to) {
  fmt::print(to, "{:>6} {:<16} {:<24} {:>7} {:>10} {:>10}\n", "tokens", "path", "variant", "weight",
             "dispatch", "combine");
  for (const SimPoint& point : points) {
    for (const PathFigures& path : point.paths) {
      for (std::size_t v = 0; v < plan.variants.size(); ++v) {
        fmt::print(to, "{:>6} {:<16} {:<24} {:7.4f} {:10.2f} {:10.2f}\n", point.tokens, path.path,
                   plan.variants[v].name, plan.variants[v].weight, path.variants[v].dispatch,
                   path.variants[v].combine);
      }
    }
  }
}

Json operation_json(const OperationFigures& f) {
  return {{"mean", f.mean},         {"p50", f.p50},          {"p99", f.p99},
          {"max_lane", f.max_lane}, {"low", f.ensemble.low}, {"high", f.ensemble.high}};
}

Json lanes_json(const Breakdown& b) {
  Json json = Json::object();
  for (std::size_t i = 0; i < b.us.size(); ++i) {
    std::string key = kActivityNames[i];
    std::replace(key.begin(), key.end(), ' ', '_');
    json[key] = b.us[i];
  }
  json["last_row_mean"] = b.last_row_mean;
  json["last_row_max"] = b.last_row_max;
  json["sync_share"] = b.sync_share();
  return json;
}

Json path_json(const SimPlan& plan, const PathFigures& f, bool lists_variants) {
  Json json = {{"path", f.path},
               {"variant", f.variant},
               {"dispatch", operation_json(f.dispatch)},
               {"combine", operation_json(f.combine)},
               {"effective_gbps", f.effective_gbps},
               {"sync_share", f.sync_share},
               {"protocol", f.protocol},
               {"roles", {f.roles.count, f.roles.send, f.roles.receive}},
               {"bytes_sent", f.bytes_sent},
               {"dispatched_bytes", f.dispatched_bytes},
               {"dispatch_lanes", lanes_json(f.dispatch.lanes)},
               {"combine_lanes", lanes_json(f.combine.lanes)}};
  if (plan.base.moves_rows) json["check"] = {{"wrong_rows", f.wrong_rows}};
  if (!lists_variants) return json;
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    json["variants"].push_back({{"variant", plan.variants[v].name},
                                {"weight", plan.variants[v].weight},
                                {"dispatch", f.variants[v].dispatch},
                                {"combine", f.variants[v].combine}});
  }
  return json;
}

Json point_json(const SimPlan& plan, const SimPoint& point, bool lists_variants) {
  Json json = {{"tokens", point.tokens},
               {"paths", Json::array()},
               {"reduction_vs_bsp", Json::object()},
               {"null",
                {{"dispatch", point.null.dispatch},
                 {"combine", point.null.combine},
                 {"latency", point.null.latency}}},
               {"cannot_rank", Json::array()}};
  for (const PathFigures& path : point.paths) {
    json["paths"].push_back(path_json(plan, path, lists_variants));
  }
  for (const Reduction& r : point.reductions) {
    json["reduction_vs_bsp"][r.path] = {
        {"dispatch", r.dispatch.mid},       {"dispatch_low", r.dispatch.low},
        {"dispatch_high", r.dispatch.high}, {"combine", r.combine.mid},
        {"combine_low", r.combine.low},     {"combine_high", r.combine.high}};
  }
  for (const Unranked& u : point.unranked) {
    json["cannot_rank"].push_back({{"operation", u.operation}, {"paths", {u.a, u.b}}});
  }
  return json;
}

}  // namespace

std::string seeds_text(const SimPlan& plan) {
  return plan.seeds.size() == 1
             ? fmt::format("seed {}", plan.seeds.front())
             : fmt::format("seeds {} to {}", plan.seeds.front(), plan.seeds.back());
}

std::string variants_text(const SimPlan& plan) {
  return plan.variants.size() == 1 ? "variant " + plan.variants.front().name
                                   : fmt::format("{} variants", plan.variants.size());
}

std::string shape_text(const SimPlan& plan) {
  const sim::LayerOptions& o = plan.base;
  const sim::Pod& pod = plan.variants.front().pod;
  return fmt::format(
      "pod {}{}, {}: {} ranks, {} lanes; top-{} of {} experts, hidden {}, {}, {}, routing {}, {}{}",
      pod.name, pod.projection ? " (a projection)" : "", variants_text(plan), o.ranks,
      plan.lanes == 0 ? pod.lanes : plan.lanes, o.topk, o.experts, o.hidden, name(o.dtype),
      name(o.layout), plan.routing, seeds_text(plan), scenario_text(first_options(plan)));
}

Json config_json(const SimPlan& plan) {
  const sim::LayerOptions& o = plan.base;
  const sim::Pod& pod = plan.variants.front().pod;
  Json json = {{"ranks", o.ranks},        {"lanes", plan.lanes == 0 ? pod.lanes : plan.lanes},
               {"tokens", plan.tokens},   {"hidden", o.hidden},
               {"topk", o.topk},          {"experts", o.experts},
               {"dtype", name(o.dtype)},  {"layout", name(o.layout)},
               {"routing", plan.routing}, {"roles", {o.roles.count, o.roles.send, o.roles.receive}},
               {"payload", o.moves_rows}, {"seeds", plan.seeds}};
  add_scenario(first_options(plan), json);
  for (const Contender& path : plan.paths) json["paths"].push_back(path.text);
  for (const sim::PodVariant& variant : plan.variants) {
    json["variants"].push_back({{"variant", variant.name}, {"weight", variant.weight}});
  }
  return json;
}

void print_points(const SimPlan& plan, const std::vector<SimPoint>& points, bool lists_variants,
                  std::FILE* to) {
  fmt::print(to, "{}\n", shape_text(plan));
  fmt::print(to,
             "us: the mean over ranks, its 5 and 95 % over the variants; p50 and p99 over ranks; "
             "until the last lane had stored its last row\n");
  print_table(points, to);
  print_comparisons(points, to);
  if (points.size() == 1) print_lanes(points.front(), to);
  if (lists_variants) print_variants(plan, points, to);
  if (!plan.base.moves_rows) return;
  for (const SimPoint& point : points) {
    const std::uint64_t runs = plan.variants.size() * plan.seeds.size();
    const auto rows = static_cast<std::uint64_t>(plan.base.ranks * point.tokens) * runs;
    for (const PathFigures& path : point.paths) {
      fmt::print(to, "check: {} of {} combined rows are wrong ({} tokens, {})\n", path.wrong_rows,
                 rows, point.tokens, path.path);
    }
  }
}

void print_cost(const SimCost& cost, std::FILE* to) {
  fmt::print(to, "{} events in {:.2f} s: {:.2f} M/s; {:.2f} GiB of memory\n", cost.events,
             cost.seconds, static_cast<double>(cost.events) * 1e-6 / cost.seconds, cost.memory_gib);
}

Json to_json(const SimPlan& plan, const std::vector<SimPoint>& points, bool lists_variants,
             const SimCost& cost) {
  Json json = {{"schema", "ubep-sim/1"},
               {"pod", plan.variants.front().pod.name},
               {"config", config_json(plan)},
               {"points", Json::array()}};
  for (const SimPoint& point : points) {
    json["points"].push_back(point_json(plan, point, lists_variants));
  }
  json["wall_s"] = cost.seconds;
  json["events"] = cost.events;
  json["memory_gib"] = cost.memory_gib;
  return json;
}

}  // namespace ubep::tools
