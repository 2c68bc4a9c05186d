#include "tools/ubep/bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/bench_ablation.hpp"
#include "tools/ubep/bench_options.hpp"
#include "tools/ubep/bench_rank.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/forked.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/launched.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/report.hpp"
#include "ubep/ubep.hpp"

namespace ubep::tools {
namespace {

constexpr std::size_t kSetBytes = 64 << 20;  // all sets of activations of one rank stay below this
constexpr int kMostSets = 8;

BenchPlan make_plan(const BenchOptions& options, int ranks, const std::vector<int>& tokens) {
  BenchPlan plan{.options = options};
  plan.tokens =
      tokens.size() == 1 ? std::vector<int>(static_cast<std::size_t>(ranks), tokens[0]) : tokens;
  const int most = *std::max_element(plan.tokens.begin(), plan.tokens.end());
  plan.max_tokens = options.max_tokens > 0 ? options.max_tokens : most;
  plan.layers = plan.max_tokens < most;
  const bool waits_alone = options.lanes_list == std::vector<int>{1} && !options.ablate;
  if (plan.layers && (!waits_alone || options.activations == "in-place")) {
    throw InputError(
        fmt::format("--max-tokens {} with --tokens {} runs in rounds, which have one lane, no "
                    "--ablate and no --activations in-place",
                    plan.max_tokens, most));
  }
  plan.expert_rank = block_map(options.experts, ranks);
  for (const BenchPath& path : options.paths) {
    for (const bool in_place : {true, false}) {
      if (options.activations == (in_place ? "copied" : "in-place")) continue;
      if (in_place && plan.layers) continue;
      plan.variants.push_back({path, in_place, options.lanes, options.roles_value});
    }
  }
  if (options.ablate) plan_ablation(plan);
  const std::size_t set_bytes = static_cast<std::size_t>(std::max(most, 1)) *
                                static_cast<std::size_t>(options.hidden) *
                                size_of(options.dtype_value);
  const std::size_t sets = std::clamp<std::size_t>(kSetBytes / set_bytes, 1, kMostSets);
  for (std::size_t set = 0; set < sets; ++set) {
    plan.routing.push_back(make_routing(options.routing, {.num_tokens = plan.tokens,
                                                          .topk = options.topk,
                                                          .experts = options.experts,
                                                          .seed = options.seed,
                                                          .set = set,
                                                          .tensor = options.tensor}));
  }
  return plan;
}

// Rows that cross between ranks in one direction, averaged over the sets.
struct Rows {
  double per_choice = 0;  // one per (token, k): expert_major
  double per_rank = 0;    // one per (token, rank): rank_major, and the deduplicated bytes
  double all = 0;         // every token to every rank: allgather
};

Rows rows_of(const BenchPlan& plan) {
  Rows rows;
  for (const auto& set : plan.routing) {
    for (std::size_t q = 0; q < set.size(); ++q) {
      const auto& idx = set[q].topk_idx;
      const auto topk = static_cast<std::size_t>(plan.options.topk);
      for (std::size_t first = 0; first < idx.size(); first += topk) {
        std::uint64_t ranks = 0;
        for (std::size_t i = first; i < first + topk; ++i) {
          if (idx[i] < 0) continue;
          const auto r =
              static_cast<std::size_t>(plan.expert_rank[static_cast<std::size_t>(idx[i])]);
          if (r != q) rows.per_choice += 1;
          if (r != q) ranks |= std::uint64_t{1} << r;
        }
        rows.per_rank += __builtin_popcountll(ranks);
      }
    }
  }
  const auto sets = static_cast<double>(plan.routing.size());
  const double tokens = std::accumulate(plan.tokens.begin(), plan.tokens.end(), 0.0);
  return {rows.per_choice / sets, rows.per_rank / sets,
          tokens * static_cast<double>(plan.tokens.size() - 1)};
}

// Rows of the least that must cross between hosts in one direction: one for each token and host
// that has one of its experts, but its own; averaged over the sets.
double rows_between_hosts(const BenchPlan& plan, const std::vector<int>& host_of) {
  std::size_t rows = 0;
  const auto topk = static_cast<std::size_t>(plan.options.topk);
  for (const auto& set : plan.routing) {
    for (std::size_t q = 0; q < set.size(); ++q) {
      const auto& idx = set[q].topk_idx;
      for (std::size_t first = 0; first < idx.size(); first += topk) {
        std::set<int> hosts;
        for (std::size_t i = first; i < first + topk; ++i) {
          if (idx[i] < 0) continue;
          const auto r = plan.expert_rank[static_cast<std::size_t>(idx[i])];
          hosts.insert(host_of[static_cast<std::size_t>(r)]);
        }
        hosts.erase(host_of[q]);
        rows += hosts.size();
      }
    }
  }
  return static_cast<double>(rows) / static_cast<double>(plan.routing.size());
}

Load load_of(const BenchPlan& plan) {
  std::vector<std::int64_t> experts(static_cast<std::size_t>(plan.options.experts));
  std::vector<std::int64_t> ranks(plan.tokens.size());
  for (const auto& set : plan.routing) {
    for (const RankRouting& routing : set) {
      for (std::int32_t e : routing.topk_idx) {
        if (e < 0) continue;
        ++experts[static_cast<std::size_t>(e)];
        ++ranks[static_cast<std::size_t>(plan.expert_rank[static_cast<std::size_t>(e)])];
      }
    }
  }
  return {.expert_max_over_mean = max_over_mean(experts),
          .rank_max_over_mean = max_over_mean(ranks)};
}

// Reads the ranks' numbers of one variant as times over all ranks: first start to last end, or the
// longest of a rank where their clocks differ.
class Times {
 public:
  Times(Stage& stage, const BenchPlan& plan, std::size_t variant)
      : stage_(stage), plan_(plan), variant_(variant) {}

  std::vector<double> between(BenchTimes::Field begin, BenchTimes::Field end, bool last_begin) {
    std::vector<double> us;
    if (stage_.hosts() != nullptr) return longest(begin, end);
    for (int i = 0; i < plan_.options.iters; ++i) {
      double from = at(0, i, begin);
      double to = at(0, i, end);
      for (std::size_t r = 1; r < plan_.tokens.size(); ++r) {
        from = last_begin ? std::max(from, at(r, i, begin)) : std::min(from, at(r, i, begin));
        to = std::max(to, at(r, i, end));
      }
      us.push_back((to - from) * 1e6);
    }
    return us;
  }

 private:
  std::vector<double> longest(BenchTimes::Field begin, BenchTimes::Field end) {
    std::vector<double> us;
    for (int i = 0; i < plan_.options.iters; ++i) {
      double most = 0;
      for (std::size_t r = 0; r < plan_.tokens.size(); ++r) {
        most = std::max(most, at(r, i, end) - at(r, i, begin));
      }
      us.push_back(most * 1e6);
    }
    return us;
  }

  double at(std::size_t rank, int iteration, BenchTimes::Field field) {
    return stage_.numbers(static_cast<int>(rank))[times_at(plan_, variant_, iteration) + field];
  }

  Stage& stage_;
  const BenchPlan& plan_;
  std::size_t variant_;
};

Timing timing_of(const std::vector<double>& us, double wire_bytes, double dedup_bytes) {
  Timing timing;
  timing.us = summarize(us);
  if (timing.us.p50 > 0) {
    timing.wire_gbps = wire_bytes / timing.us.p50 / 1e3;
    timing.dedup_gbps = dedup_bytes / timing.us.p50 / 1e3;
  }
  return timing;
}

double dispatched_row_bytes(const BenchPlan& plan) {
  const std::int64_t hidden = plan.options.hidden;
  const Quant quant = plan.options.quant_value;
  if (quant != Quant::none) return static_cast<double>(quantized_row_bytes(quant, hidden));
  return static_cast<double>(hidden) * static_cast<double>(size_of(plan.options.dtype_value));
}

// The path that rank 0 took, why, and how often all ranks copied each row.
PathResult describe_path(Stage& stage, const BenchPlan& plan, std::size_t v) {
  const BenchVariant& variant = plan.variants[v];
  const double* notes = &stage.numbers(0)[notes_at(v)];
  PathResult result;
  result.path = name(static_cast<Path>(static_cast<int>(notes[BenchNotes::path])));
  result.variant = variant.in_place ? "in-place" : "copied";
  result.store = notes[BenchNotes::far] > 0 ? "far" : "near";
  if (result.path == name(Path::push)) {
    const std::string& asked = plan.options.protocol;
    result.protocol = asked == name(Protocol::automatic) ? name(Protocol::put_with_signal) : asked;
  }
  result.layout = name(variant.path.layout);
  const bool automatic = variant.path.path == Path::automatic;
  const bool store_auto = plan.options.store_value == Store::automatic;
  result.chosen_by = automatic || store_auto ? "auto" : "user";
  const double flag_ns = stage.numbers(0)[BenchScalars::flag_one_way_ns];
  const std::string store = !store_auto   ? "asked for"
                            : flag_ns > 0 ? fmt::format("probe, {:.0f} ns one way", flag_ns)
                                          : "placement unknown";
  const char* reason = reinterpret_cast<const char*>(notes + BenchNotes::reason);
  result.reason = fmt::format("path: {}; store: {}", reason, store);
  double rows = 0;
  double dispatched = 0;
  double combined = 0;
  for (std::size_t r = 0; r < plan.tokens.size(); ++r) {
    const double* of_rank = &stage.numbers(static_cast<int>(r))[notes_at(v)];
    rows += of_rank[BenchNotes::rows];
    dispatched += of_rank[BenchNotes::dispatch_copied];
    combined += of_rank[BenchNotes::combine_copied];
  }
  const double bytes = rows * static_cast<double>(plan.options.hidden) *
                       static_cast<double>(size_of(plan.options.dtype_value));
  if (variant.lanes > 1) {
    result.roles = Roles{static_cast<int>(notes[BenchNotes::lanes_count]),
                         static_cast<int>(notes[BenchNotes::lanes_send]),
                         static_cast<int>(notes[BenchNotes::lanes_receive])};
  }
  if (bytes > 0 && !plan.layers) {  // else they are those of the last round
    result.copies = Copies{dispatched / (rows * dispatched_row_bytes(plan)), combined / bytes};
  }
  return result;
}

Crossed crossed_of(Stage& stage, const BenchPlan& plan, std::size_t v) {
  Crossed crossed;
  for (std::size_t r = 0; r < plan.tokens.size(); ++r) {
    crossed.bytes += stage.numbers(static_cast<int>(r))[notes_at(v) + BenchNotes::crossed];
  }
  const double output_row_bytes = static_cast<double>(plan.options.hidden) *
                                  static_cast<double>(size_of(plan.options.dtype_value));
  crossed.minimum_bytes = rows_between_hosts(plan, stage.hosts()->host_of) *
                          (dispatched_row_bytes(plan) + output_row_bytes);
  return crossed;
}

PathResult path_result(Stage& stage, const BenchPlan& plan, std::size_t v) {
  const BenchVariant& variant = plan.variants[v];
  PathResult result = describe_path(stage, plan, v);
  const double row_bytes = static_cast<double>(plan.options.hidden) *
                           static_cast<double>(size_of(plan.options.dtype_value));
  const Rows rows = rows_of(plan);
  const double wire_rows = variant.path.path == Path::allgather ? rows.all
                           : is_by_expert(variant.path.layout)  ? rows.per_choice
                                                                : rows.per_rank;
  if (stage.hosts() != nullptr) result.crossed = crossed_of(stage, plan, v);
  const double wire = wire_rows * row_bytes;
  const double dedup = rows.per_rank * row_bytes;
  const double sent = wire_rows * dispatched_row_bytes(plan);
  const double sent_dedup = rows.per_rank * dispatched_row_bytes(plan);
  Times times(stage, plan, v);
  const auto dispatch = times.between(BenchTimes::dispatch_begin, BenchTimes::dispatch_end, false);
  const auto combine = times.between(BenchTimes::combine_begin, BenchTimes::combine_end, false);
  std::vector<double> round_trip;
  for (std::size_t i = 0; i < dispatch.size(); ++i) round_trip.push_back(dispatch[i] + combine[i]);
  result.dispatch = timing_of(dispatch, sent, sent_dedup);
  result.combine = timing_of(combine, wire, dedup);
  result.round_trip = timing_of(round_trip, sent + wire, sent_dedup + dedup);
  result.cycle = timing_of(times.between(BenchTimes::cycle_begin, BenchTimes::cycle_end, true),
                           sent + wire, sent_dedup + dedup);
  return result;
}

double sum_over_ranks(Stage& stage, const BenchPlan& plan, BenchScalars::Field field) {
  double sum = 0;
  for (std::size_t r = 0; r < plan.tokens.size(); ++r) {
    sum += stage.numbers(static_cast<int>(r))[field];
  }
  return sum;
}

Point collect(Stage& stage, const BenchPlan& plan) {
  Point point;
  point.ranks = static_cast<int>(plan.tokens.size());
  point.tokens = plan.tokens;
  point.load = load_of(plan);
  if (const CommunicatorFacts* facts = stage.hosts(); facts != nullptr) {
    point.hosts = Hosts{facts->host_of, facts->host_names, facts->transport};
  }
  if (plan.layers) {
    const int most = *std::max_element(plan.tokens.begin(), plan.tokens.end());
    point.rounds = (most + plan.max_tokens - 1) / plan.max_tokens;
  }
  MemoryUse memory;
  for (std::size_t c = 0; c < plan.adjusts.size(); ++c) {
    const CommunicatorOptions options = communicator_options(plan, c);
    for (int r = 0; r < point.ranks; ++r) {
      memory.reserved += Communicator::plan_memory(options, r, point.ranks).reserved_bytes();
    }
  }
  memory.resident =
      static_cast<std::uint64_t>(sum_over_ranks(stage, plan, BenchScalars::resident_bytes));
  point.memory = memory;
  double first = 0;
  for (int r = 0; r < point.ranks; ++r) {
    first = std::max(first, stage.numbers(r)[BenchScalars::first_call]);
  }
  point.first_call_us = first * 1e6;
  const double wall = sum_over_ranks(stage, plan, BenchScalars::wall_seconds);
  point.cores_used = sum_over_ranks(stage, plan, BenchScalars::cpu_seconds) / (wall / point.ranks);
  if (plan.options.check) {
    Check check;
    check.mismatches =
        static_cast<std::int64_t>(sum_over_ranks(stage, plan, BenchScalars::mismatches));
    check.passed = check.mismatches == 0;
    const double ab = sum_over_ranks(stage, plan, BenchScalars::dot_actual_expected);
    const double aa = sum_over_ranks(stage, plan, BenchScalars::dot_actual);
    const double bb = sum_over_ranks(stage, plan, BenchScalars::dot_expected);
    check.calc_diff = aa + bb == 0 ? 0 : 1 - 2 * ab / (aa + bb);
    point.check = check;
  }
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    point.paths.push_back(path_result(stage, plan, v));
  }
  if (plan.options.ablate) {
    point.ablation = collect_ablation(stage, plan, point.paths);
    point.paths.clear();
  }
  return point;
}

// One point: forks the ranks. Returns the exit code.
int run_point(const BenchPlan& plan, Point& point) {
  const auto ranks = static_cast<int>(plan.tokens.size());
  SharedStage stage(ranks, stage_doubles(plan));
  const int code = run_on_stage(stage, ranks, "ubep bench", [&](const Bootstrap& bootstrap) {
    return run_bench_rank(bootstrap, plan, stage);
  });
  if (code == kOk) point = collect(stage, plan);
  return code;
}

// One point as one rank of a launcher's. Only rank 0 fills the point.
int run_joined_point(Bootstrap bootstrap, const BenchPlan& plan, Point& point) {
  const std::string job = bootstrap.job;
  bootstrap.job = job + "/stage";
  const auto stage = make_stage(bootstrap, stage_doubles(plan));
  bootstrap.job = job + "/point";
  (void)run_bench_rank(bootstrap, plan, *stage);
  if (!stage->gather(bootstrap.rank)) {
    const int code = stage->exit_code();
    print_once([&] { fmt::print(stderr, "ubep bench: {}\n", stage->text()); });
    return code;
  }
  if (bootstrap.rank == 0) point = collect(*stage, plan);
  return kOk;
}

// --compare-ranks: how a wire byte's price changes with the number of ranks.
void print_rank_scaling(const BenchResult& result, std::FILE* out) {
  for (const Point& point : result.points) {
    for (const Point& base : result.points) {
      if (base.tokens[0] != point.tokens[0] || base.ranks >= point.ranks) continue;
      if (base.ranks == 1) continue;  // no byte crosses
      for (std::size_t v = 0; v < point.paths.size(); ++v) {
        const auto& now = point.paths[v].round_trip;
        const auto& before = base.paths[v].round_trip;
        if (!now->wire_gbps || !before->wire_gbps || *now->wire_gbps <= 0) continue;
        fmt::print(out,
                   "{}@{} {}, {} tokens: a wire byte of the round trip costs {:.2f} x with {} "
                   "ranks what it costs with {}\n",
                   point.paths[v].path, point.paths[v].layout, point.paths[v].variant,
                   point.tokens[0], *before->wire_gbps / *now->wire_gbps, point.ranks, base.ranks);
      }
      break;
    }
  }
}

// What the table has no room for: all figures of each operation, and what each point cost.
void print_details(const BenchResult& result, std::FILE* out) {
  const auto figures = [out](const char* operation, const std::optional<Timing>& timing) {
    const Summary& us = timing->us;
    fmt::print(out,
               "           {:<10} avg {:.1f}  min {:.1f}  p50 {:.1f}  p99 {:.1f}  max {:.1f} us\n",
               operation, us.avg, us.min, us.p50, us.p99, us.max);
  };
  for (const Point& point : result.points) {
    fmt::print(
        out,
        "point    {} ranks, {} tokens: load max/mean {:.2f} by expert, {:.2f} by rank; first "
        "call {:.0f} us; {:.2f} cores used; memory {} MiB reserved, {} MiB resident\n",
        point.ranks, fmt::join(point.tokens, ","), point.load.expert_max_over_mean,
        point.load.rank_max_over_mean, *point.first_call_us, *point.cores_used,
        point.memory->reserved >> 20, point.memory->resident >> 20);
    for (const PathResult& path : point.paths) {
      fmt::print(out, "         {}:{}@{}{}\n", path.path, path.variant, path.layout,
                 path.roles ? fmt::format(", roles {}:{}:{}", path.roles->count, path.roles->send,
                                          path.roles->receive)
                            : "");
      figures("dispatch", path.dispatch);
      figures("combine", path.combine);
      figures("round trip", path.round_trip);
      figures("cycle", path.cycle);
    }
  }
}

// --explain: what `auto` became and why; the probe that it rests on stands above.
void print_reasons(const BenchResult& result, std::FILE* out) {
  for (const Point& point : result.points) {
    for (const PathResult& path : point.paths) {
      fmt::print(out, "why      {} ranks, {} tokens, {} {}: path {} and store {} ({})\n",
                 point.ranks, fmt::join(point.tokens, ","), path.layout, path.variant, path.path,
                 path.store, path.reason);
    }
  }
}

void print_checks(const BenchResult& result, std::FILE* out) {
  std::int64_t mismatches = 0;
  for (const Point& point : result.points) mismatches += point.check->mismatches;
  fmt::print(out, "check    {}: {} rows differ from the reference\n",
             mismatches == 0 ? "passed" : "FAILED", mismatches);
}

void write_result(const BenchOptions& options, const BenchResult& result) {
  std::FILE* text = options.json == "-" ? stderr : stdout;
  print_table(result, text);
  print_details(result, text);
  if (options.explain) print_reasons(result, text);
  if (!options.compare_ranks.empty()) print_rank_scaling(result, text);
  if (options.check) print_checks(result, text);
  if (options.json.empty()) return;
  const std::string json = to_json(result).dump(2) + "\n";
  if (options.json == "-") {
    std::fputs(json.c_str(), stdout);  // whether it arrived is asked in run_bench()
  } else {
    write_file(options.json, json);
  }
}

}  // namespace

int run_bench(const CLI::App& app, BenchOptions& options) {
  if (under_launcher()) {
    take_world(app, options.ranks);
    if (app.count("--compare-ranks") > 0) {
      throw InputError(fmt::format("--compare-ranks: a launcher started {} ranks", options.ranks));
    }
  }
  resolve_bench_options(app, options);
  std::vector<BenchPlan> plans;  // all input errors come before the first measurement
  for (const auto& tokens : options.token_list) {
    for (int ranks : options.ranks_list) plans.push_back(make_plan(options, ranks, tokens));
  }
  BenchResult result;
  result.version = kVersion;
  Bootstrap bootstrap;
  if (under_launcher()) bootstrap = Bootstrap::from_environment();
  const bool silent = bootstrap.rank != 0;  // rank 0 of a launcher's speaks for all
  if (!silent) result.machine = read_machine();
  result.config = {.hidden = options.hidden,
                   .topk = options.topk,
                   .experts = options.experts,
                   .dtype = options.dtype,
                   .quant = options.quant,
                   .routing = options.routing,
                   .lanes = options.lanes_list,
                   .slots = options.slots,
                   .iters = options.iters,
                   .seed = options.seed};
  const bool terminal = !silent && isatty(STDERR_FILENO) != 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (terminal) {
      fmt::print(stderr, "\rpoint {}/{}: {} ranks, {} tokens ", i + 1, plans.size(),
                 plans[i].tokens.size(), plans[i].tokens[0]);
      std::fflush(stderr);
    }
    Point point;
    const int code = under_launcher() ? run_joined_point(bootstrap, plans[i], point)
                                      : run_point(plans[i], point);
    if (code != kOk) return code;
    result.points.push_back(std::move(point));
  }
  if (terminal) fmt::print(stderr, "\r\033[K");
  if (silent) return kOk;
  result.probe_after = probe_placement();
  write_result(options, result);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw InputError("the result could not be written to standard output");
  }
  const bool passed = std::all_of(result.points.begin(), result.points.end(),
                                  [](const Point& p) { return !p.check || p.check->passed; });
  return passed ? kOk : kCheckFailed;
}

}  // namespace ubep::tools
