#include "tools/ubep/sim/probe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/enum_option.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/forked.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/machine.hpp"
#include "tools/ubep/presets.hpp"
#include "tools/ubep/sim/probe_pair.hpp"
#include "tools/ubep/sim/probe_rows.hpp"

namespace ubep::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMostGbS = 1e5;                      // where a part costs nothing that can be seen
constexpr std::size_t kBytes = std::size_t{1} << 28;  // of received rows, of all laps of a kind
constexpr std::size_t kMostShared = std::size_t{1} << 31;

// What both ranks have measured, as they leave it on the stage.
struct Measured {
  WordTimes words;
  RowTimes rows;
};
static_assert(std::is_trivially_copyable_v<Measured>);
constexpr std::size_t kDoubles = (sizeof(Measured) + sizeof(double) - 1) / sizeof(double);

ProbeShape shape_of(const CLI::App& app, const ProbeCommand& c) {
  ProbeShape shape{.tokens = c.tokens, .hidden = c.hidden, .topk = c.topk, .experts = c.experts};
  if (!c.preset.empty()) {
    const Preset preset = find_preset(c.preset);
    if (app.count("--hidden") == 0) shape.hidden = preset.hidden;
    if (app.count("--experts") == 0) shape.experts = preset.experts;
    if (app.count("--topk") == 0) shape.topk = preset.topk;
  }
  if (shape.topk > shape.experts) {
    throw InputError(fmt::format("--topk is {}, --experts {}", shape.topk, shape.experts));
  }
  const std::size_t bytes = static_cast<std::size_t>(shape.tokens) *
                            static_cast<std::size_t>(shape.topk) * shape.row_bytes();
  // Eight areas of each rank, with some more rows than the mean.
  if (bytes > kMostShared / 32) {
    throw InputError(fmt::format("{} tokens are {} bytes of rows, expected at most {}",
                                 shape.tokens, bytes, kMostShared / 32));
  }
  const auto laps = static_cast<int>(std::clamp<std::size_t>(kBytes / bytes, 40, 400));
  shape.laps = c.laps != 0 ? c.laps : laps;
  return shape;
}

Store store_of(const ProbeCommand& c, const PlacementProbe& probe) {
  const Store asked = one_of(c.store, "--store", {Store::automatic, Store::near, Store::far});
  if (asked != Store::automatic) return asked;
  const bool near = probe.placement == Placement::near || probe.placement == Placement::smt;
  return near ? Store::near : Store::far;
}

Measured mean(const Measured& a, const Measured& b) {
  Measured m = a;
  for (std::size_t i = 0; i < m.rows.seconds.size(); ++i) {
    m.rows.seconds[i] = (a.rows.seconds[i] + b.rows.seconds[i]) / 2;
  }
  m.rows.rows = (a.rows.rows + b.rows.rows) / 2;
  m.rows.tokens = (a.rows.tokens + b.rows.tokens) / 2;
  return m;
}

// Instructions of a rank's bookkeeping, as callgrind counts them for `ubep_instructions`
// (docs/simulator.md): all but plans, copies and sums.
constexpr double kDispatchInstructions = 4400;
constexpr double kCombineInstructions = 2700;
constexpr double kRowInstructions = 100;         // of a row that is copied or summed
constexpr double kSmallPlanInstructions = 2300;  // of the probe's small plan

double ns(double seconds) { return std::max(std::round(seconds * 1e12) / 1e3, 0.0); }

// Bytes that take so long; a time below the clock's precision counts for nothing.
double gb_s(double bytes, double seconds) {
  const double rate = seconds <= 0 ? kMostGbS : std::min(bytes / seconds * 1e-9, kMostGbS);
  return std::max(std::round(rate * 1e3) / 1e3, 1e-3);
}

// How long rows take where a part of them is a peer's, `mixed`, and where all are own: the rate of
// own rows, and the one at which the peer's take longer. Where they do not, all rows are alike.
struct Pace {
  double own_gb_s;
  double peer_gb_s;
};
Pace pace_of_rows(double bytes, double own, double mixed, double part) {
  if (part <= 0 || mixed <= own) return {gb_s(bytes, part <= 0 ? own : mixed), kMostGbS};
  return {gb_s(bytes, own), gb_s(bytes, (mixed - own) / part)};
}

// Seconds of an instruction of bookkeeping: once between rows that are moved, or in a loop over
// them.
double seconds_of_instruction(const Measured& m, RowTimes::Part plan) {
  return m.rows.seconds[plan] / kSmallPlanInstructions;
}

// The part of a rank's rows of sums that lie at its peer.
double crossing_part(const ProbeShape& shape, const Measured& m) {
  return m.rows.rows / (static_cast<double>(shape.tokens) * shape.topk);
}

// Rates of the measured parts.
class Rates {
 public:
  Rates(const ProbeShape& shape, const Measured& m)
      : row_(static_cast<double>(shape.row_bytes())),
        seconds_(m.rows.seconds),
        crossing_(crossing_part(shape, m)) {}

  double of(RowTimes::Part part) const { return gb_s(row_, seconds_[part]); }
  // As many own rows as the peer's, of which `part` is read from there.
  Pace copies(RowTimes::Part own, RowTimes::Part peers, double part) const {
    return pace_of_rows(row_, seconds_[own], (seconds_[own] + seconds_[peers]) / 2, part / 2);
  }
  Pace sums(RowTimes::Part mixed) const {
    return pace_of_rows(row_, seconds_[RowTimes::sum], seconds_[mixed], crossing_);
  }

 private:
  double row_;
  std::array<double, RowTimes::count> seconds_;
  double crossing_;
};

Json lane_json(const ProbeShape& shape, const Measured& m) {
  const Rates rates(shape, m);
  // A token crosses once and is copied for each of its rows: all but the first read own caches.
  const double once = m.rows.rows <= 0 ? 0 : m.rows.tokens / m.rows.rows;
  const Pace copies = rates.copies(RowTimes::copy, RowTimes::take, once);
  const double row = ns(kRowInstructions * seconds_of_instruction(m, RowTimes::warm_plan));
  const double choices = 4.0 * shape.tokens * shape.topk;  // bytes
  return {{"issue_ns", ns(m.words.store)},
          {"poll_ns", ns(m.words.look)},
          {"fence_ns", ns(m.words.fence)},
          {"read_ns", ns(m.words.line)},
          {"row_ns", row},
          {"combine_row_ns", row},
          {"put_gb_s", rates.of(RowTimes::put)},
          {"share_gb_s", rates.of(RowTimes::share)},
          {"copy_gb_s", copies.own_gb_s},
          {"read_gb_s", copies.peer_gb_s},
          {"reduce_gb_s", rates.of(RowTimes::sum)},
          {"plan_gb_s", gb_s(choices, m.rows.seconds[RowTimes::plan])}};
}

// Where costs differ in a combine, and on path bsp.
void add_overrides(const ProbeShape& shape, const Measured& m, Json& pod) {
  const Rates rates(shape, m);
  const Pace sums = rates.sums(RowTimes::mixed_sum);
  pod["combine"] = {{"reduce_gb_s", sums.own_gb_s}, {"read_gb_s", sums.peer_gb_s}};
  if (shape.store == Store::far) pod["combine"]["share_gb_s"] = rates.of(RowTimes::out_share);
  const Pace copies = rates.copies(RowTimes::bsp_copy, RowTimes::bsp_take, 1);
  pod["bsp"] = {{"put_gb_s", rates.of(RowTimes::bsp_put)},
                {"copy_gb_s", copies.own_gb_s},
                {"read_gb_s", copies.peer_gb_s}};
  const Pace back = rates.sums(RowTimes::back_sum);
  pod["bsp_combine"] = {{"put_gb_s", rates.of(RowTimes::back_put)},
                        {"reduce_gb_s", back.own_gb_s},
                        {"read_gb_s", back.peer_gb_s}};
}

Json pod_json(const ProbeShape& shape, const Measured& m, const PlacementProbe& probe) {
  const Json lane = lane_json(shape, m);
  Json pod = {{"name", "this-machine"},
              {"source",
               fmt::format("ubep probe on {}, CPUs {}, {} tokens, hidden {}, top-{} of {} experts",
                           read_machine().model, placement_name(probe.placement), shape.tokens,
                           shape.hidden, shape.topk, shape.experts)},
              {"ranks", 2},
              {"lanes", 1},
              {"mapped", name(shape.store)},
              {"port_gb_s", lane["put_gb_s"]},
              {"memory_gb_s", lane["put_gb_s"]},
              {"block_bytes", 4096},
              {"jitter_ns", 0}};
  pod["tiers"] = {{{"name", "host"}, {"ranks", 2}, {"latency_ns", ns(m.words.one_way)}}};
  const double pace = seconds_of_instruction(m, RowTimes::small_plan);
  // Before it begins, a dispatch looks at the word by which the peer ended the one before the last.
  pod["launch_ns"] = ns(kDispatchInstructions * pace + m.words.line);
  pod["combine_launch_ns"] = ns(kCombineInstructions * pace);
  pod["lane"] = lane;
  add_overrides(shape, m, pod);
  return pod;
}

// Returns the exit code.
int measure(const ProbeShape& shape, Measured& measured) {
  SharedStage stage(2, kDoubles);
  const SharedBytes page(kWordBytes);
  const ProbeRows rows(shape);
  const int code = run_on_stage(stage, 2, "ubep probe", [&](const Bootstrap& bootstrap) {
    stage.announce(bootstrap.rank, getpid());
    try {
      pin_to(bootstrap.rank);
      Measured m;
      m.words = measure_words(stage, bootstrap.rank, shape.store, page.data());
      m.rows = rows.measure(stage, bootstrap.rank);
      std::memcpy(stage.numbers(bootstrap.rank).data(), &m, sizeof m);
    } catch (const std::exception& error) {
      stage.fail(kUsage, error.what());
    }
    return stage.exit_code();
  });
  if (code != kOk) return code;
  std::array<Measured, 2> both;
  for (int r = 0; r < 2; ++r) {
    std::memcpy(static_cast<void*>(&both[static_cast<std::size_t>(r)]), stage.numbers(r).data(),
                sizeof(Measured));
  }
  measured = mean(both[0], both[1]);
  return kOk;
}

}  // namespace

void add_probe_options(CLI::App& app, ProbeCommand& c) {
  const auto count = CLI::Range(1, 1 << 20);
  app.add_option("-o,--output", c.output, "the pod's file, or - for standard output")
      ->capture_default_str();
  app.add_option("--tokens", c.tokens, "tokens of each rank")->check(count)->capture_default_str();
  app.add_option("--hidden", c.hidden, "bf16 elements of a row")
      ->check(count)
      ->capture_default_str();
  app.add_option("--topk", c.topk, "experts per token")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--experts", c.experts, "experts of both ranks")
      ->check(CLI::Range(2, 65535))
      ->capture_default_str();
  app.add_option("--preset", c.preset, "shape of a model, e.g. deepseek-v3-decode");
  app.add_option("--store", c.store, "auto (by how far the CPUs are), near or far")
      ->capture_default_str();
  app.add_option("--laps", c.laps, "times that each part is measured (by the bytes)")
      ->check(CLI::Range(10, 100000));
}

int run_probe(const CLI::App& app, const ProbeCommand& command) {
  ProbeShape shape = shape_of(app, command);
  const bool to_file = command.output != "-";
  if (to_file) check_writable(command.output, "--output");
  if (usable_cpus().size() < 2) throw InputError("ubep probe needs 2 CPUs");
  const PlacementProbe before = probe_placement();
  shape.store = store_of(command, before);
  Measured measured;
  const int code = measure(shape, measured);
  if (code != kOk) return code;
  const PlacementProbe after = probe_placement();
  if (after.placement != before.placement || before.placement == Placement::mixed) {
    fmt::print(stderr, "ubep probe: CPUs were {} before and are {}: the pod is of no use\n",
               placement_name(before.placement), placement_name(after.placement));
    return kCheckFailed;
  }
  const std::string text = pod_json(shape, measured, before).dump(2) + "\n";
  if (to_file) {
    write_file(command.output, text);
  } else {
    fmt::print("{}", text);
  }
  return kOk;
}

}  // namespace ubep::tools
