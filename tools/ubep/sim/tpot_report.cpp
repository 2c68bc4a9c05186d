#include "tools/ubep/sim/tpot_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/ubep/sim/report.hpp"

namespace ubep::tools {
namespace {

using Json = nlohmann::ordered_json;

// Without an interval where there is none: one variant, or all alike.
std::string text_of(const Interval& i) {
  if (i.low == i.high) return fmt::format("{:.2f}", i.mid);
  return fmt::format("{:.2f} [{:.2f} to {:.2f}]", i.mid, i.low, i.high);
}

Json json_of(const Interval& i) { return {{"mid", i.mid}, {"low", i.low}, {"high", i.high}}; }

void print_head(const TpotCommand& c, const SimPlan& plan, const TpotResult& result,
                std::FILE* to) {
  const ModelShape& m = result.model;
  const sim::Pod& pod = plan.variants.front().pod;
  fmt::print(
      to,
      "{} on {}{}: {} layers, {} of them dense; {} experts, top-{}, hidden {}, {}; {} lanes, "
      "routing {}, {}, {}{}\n",
      m.name, pod.name, pod.projection ? " (a projection)" : "", m.layers, m.dense_layers,
      m.experts, m.topk, m.hidden, name(plan.base.dtype), plan.lanes == 0 ? pod.lanes : plan.lanes,
      plan.routing, seeds_text(plan), variants_text(plan),
      scenario_text(plan.options(plan.tokens.front(), plan.paths.front(), plan.variants.front(),
                                 plan.seeds.front())));
  fmt::print(to, "arrival jitter: exponential, mean {} us; experts {} us at the mean load; {}\n",
             c.jitter_us, c.expert_us, c.micro_batches == 1 ? "one batch" : "two micro-batches");
}

void print_experts(const TpotResult& result, std::FILE* to) {
  int last = 0;
  for (const TpotPoint& point : result.points) {
    const int experts = result.model.experts;
    if (point.ranks == last || experts % point.ranks == 0) continue;
    last = point.ranks;
    const int more = experts % point.ranks;
    fmt::print(to, "{} experts on {} ranks: {} have {} and {} have {}\n", experts, point.ranks,
               more, experts / point.ranks + 1, point.ranks - more, experts / point.ranks);
  }
}

void print_point(const TpotCommand& c, const TpotPoint& point, std::FILE* to) {
  if (point.non_expert_us) {
    fmt::print(to, "{:>5} ranks {:>5} tokens: non-expert time of a layer {} us{}\n", point.ranks,
               point.tokens, text_of(*point.non_expert_us),
               point.derived ? ", the published 874 us without bsp's dispatch and combine" : "");
  }
  for (const TpotPath& path : point.paths) {
    fmt::print(to, "{:>5} ranks {:>5} tokens: {:<5} exchange of a layer {} us", point.ranks,
               point.tokens, path.path, text_of(path.exchange_us));
    if (point.non_expert_us) {
      fmt::print(to, ", TPOT {} ms, p99 {} ms, {:.0f} tokens/s a rank", text_of(path.mean_ms),
                 text_of(path.p99_ms), path.tokens_per_s);
      if (path.on_front) fmt::print(to, ", on the front");
      if (c.limit_ms != 0) {
        fmt::print(to, ", {} {} ms", path.mean_ms.mid <= c.limit_ms ? "within" : "beyond",
                   c.limit_ms);
      }
    }
    fmt::print(to, "\n");
  }
  fmt::print(to, "{:>5} ranks {:>5} tokens: push less than bsp by {} ms a token, p99 {} ms{}\n",
             point.ranks, point.tokens, text_of(point.gain_mean_ms), text_of(point.gain_p99_ms),
             point.gain_mean_ms.contains_zero() ? ": cannot rank" : "");
}

// The most tokens a second within the limit.
void print_best(const TpotCommand& c, const TpotResult& result, std::FILE* to) {
  for (std::size_t p = 0; p < result.points.front().paths.size(); ++p) {
    const TpotPoint* best = nullptr;
    for (const TpotPoint& point : result.points) {
      if (point.paths[p].mean_ms.mid > c.limit_ms) continue;
      if (best == nullptr || point.paths[p].tokens_per_s > best->paths[p].tokens_per_s) {
        best = &point;
      }
    }
    const std::string& path = result.points.front().paths[p].path;
    if (best == nullptr) {
      fmt::print(to, "within {} ms, {}: none\n", c.limit_ms, path);
      continue;
    }
    fmt::print(to, "within {} ms, {}: {:.0f} tokens/s a rank, {} ranks, {} tokens\n", c.limit_ms,
               path, best->paths[p].tokens_per_s, best->ranks, best->tokens);
  }
}

Json point_json(const TpotPoint& point) {
  Json json = {{"ranks", point.ranks},
               {"tokens", point.tokens},
               {"non_expert_us", nullptr},
               {"derived", point.derived},
               {"paths", Json::array()},
               {"push_less_than_bsp_ms",
                {{"mean", json_of(point.gain_mean_ms)},
                 {"p99", json_of(point.gain_p99_ms)},
                 {"cannot_rank", point.gain_mean_ms.contains_zero()}}}};
  if (point.non_expert_us) json["non_expert_us"] = json_of(*point.non_expert_us);
  for (const TpotPath& path : point.paths) {
    Json item = {{"path", path.path}, {"exchange_us", json_of(path.exchange_us)}};
    if (point.non_expert_us) {
      item["tpot_ms"] = {{"mean", json_of(path.mean_ms)}, {"p99", json_of(path.p99_ms)}};
      item["tokens_per_s"] = path.tokens_per_s;
      item["on_front"] = path.on_front;
    }
    json["paths"].push_back(std::move(item));
  }
  return json;
}

}  // namespace

void print_tpot(const TpotCommand& c, const SimPlan& plan, const TpotResult& result,
                std::FILE* to) {
  print_head(c, plan, result, to);
  print_experts(result, to);
  for (const TpotPoint& point : result.points) print_point(c, point, to);
  const bool absolute =
      std::all_of(result.points.begin(), result.points.end(),
                  [](const TpotPoint& point) { return point.non_expert_us.has_value(); });
  if (!absolute) {
    fmt::print(to, "no TPOT where the non-expert time of a layer is not known: see --layer-us\n");
  }
  if (c.limit_ms != 0) print_best(c, result, to);
}

Json tpot_json(const TpotCommand& c, const SimPlan& plan, const TpotResult& result) {
  const ModelShape& m = result.model;
  const sim::LayerOptions push = plan.options(plan.tokens.front(), plan.paths.back(),
                                              plan.variants.front(), plan.seeds.front());
  Json json = {{"schema", "ubep-sim-tpot/1"},
               {"pod", plan.variants.front().pod.name},
               {"model", m.name},
               {"config",
                {{"layers", m.layers},
                 {"dense_layers", m.dense_layers},
                 {"experts", m.experts},
                 {"topk", m.topk},
                 {"hidden", m.hidden},
                 {"dtype", name(plan.base.dtype)},
                 {"lanes", plan.lanes == 0 ? plan.variants.front().pod.lanes : plan.lanes},
                 {"protocol", protocol_text({push.protocol, push.checksum_rows})},
                 {"routing", plan.routing},
                 {"seeds", plan.seeds},
                 {"jitter_us", c.jitter_us},
                 {"expert_us", c.expert_us},
                 {"micro_batches", c.micro_batches}}},
               {"points", Json::array()}};
  add_scenario(push, json["config"]);
  if (c.limit_ms != 0) json["config"]["tpot_limit_ms"] = c.limit_ms;
  for (const sim::PodVariant& variant : plan.variants) {
    json["config"]["variants"].push_back({{"variant", variant.name}, {"weight", variant.weight}});
  }
  for (const TpotPoint& point : result.points) json["points"].push_back(point_json(point));
  json["events"] = result.events;
  return json;
}

}  // namespace ubep::tools
