#include "tools/ubep/ablation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace ubep::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, kAblationTimes> kTimeNames = {"dispatch", "combine", "round_trip",
                                                                "cycle"};
constexpr std::array<AblationTime, 3> kExplained = {AblationTime::dispatch, AblationTime::combine,
                                                    AblationTime::round_trip};
constexpr double kNotch = 1.57;  // McGill, Tukey, Larsen 1978

double rounded(double value) { return std::round(value * 1000) / 1000; }

std::optional<Breakdown> spent_of(const AblationEntry& entry, AblationTime time) {
  if (!entry.spent || time == AblationTime::cycle) return std::nullopt;
  const auto& [dispatch, combine] = *entry.spent;
  if (time == AblationTime::dispatch) return dispatch;
  if (time == AblationTime::combine) return combine;
  Breakdown both = dispatch;
  for (std::size_t a = 0; a < both.us.size(); ++a) both.us[a] += combine.us[a];
  return both;
}

double work_share(const Breakdown& b) {
  const double work = b.of(Activity::count) + b.of(Activity::send) + b.of(Activity::receive);
  return b.total() == 0 ? 0 : work / b.total();
}

// How many times faster.
double gain(const AblationEntry& before, const AblationEntry& after, AblationTime time) {
  return after.of(time).p50 > 0 ? before.of(time).p50 / after.of(time).p50 : 0;
}

Json breakdown_json(const Breakdown& b) {
  Json us = Json::object();
  for (std::size_t a = 0; a < b.us.size(); ++a) {
    std::string key = kActivityNames[a];
    std::replace(key.begin(), key.end(), ' ', '_');
    us[key] = rounded(b.us[a]);
  }
  return {{"lane_us", us},
          {"sync_share", rounded(b.sync_share())},
          {"last_row_us", {{"mean", rounded(b.last_row_mean)}, {"max", rounded(b.last_row_max)}}}};
}

Json saving_json(const Saving& s) {
  return {{"gained_us", rounded(s.gained)},
          {"noise_us", rounded(s.noise)},
          {"waits_us", rounded(s.waits)},
          {"work_us", rounded(s.work)},
          {"verdict", name(s.verdict)}};
}

Json time_json(const std::vector<AblationEntry>& entries, const AblationEntry& entry,
               std::size_t t) {
  const auto time = static_cast<AblationTime>(t);
  const Summary& us = entry.us[t];
  Json json = {{"p50", rounded(us.p50)},
               {"min", rounded(us.min)},
               {"p25", rounded(us.p25)},
               {"p75", rounded(us.p75)},
               {"p99", rounded(us.p99)},
               {"gain_over_step", rounded(gain(entries[entry.on], entry, time))},
               {"gain_over_first", rounded(gain(entries[entry.first], entry, time))}};
  if (const auto spent = spent_of(entry, time)) json.update(breakdown_json(*spent));
  if (const auto saved = saving(entries[entry.on], entry, time))
    json["saved"] = saving_json(*saved);
  return json;
}

// Rows to a block of their source, and copied from there: as many copies as bsp makes.
void stage_rows(CommunicatorOptions& options) { options.stage_pushed = true; }

template <Protocol protocol>
AblationStep with_protocol(std::size_t on) {
  return {.name = fmt::format("+ {}", name(protocol)),
          .on = on,
          .adjust = [](CommunicatorOptions& options) { options.protocol = protocol; }};
}

std::string roles_cell(const Roles& roles) {
  if (roles.count + roles.send + roles.receive == 0) return "-";
  return fmt::format("{}:{}:{}", roles.count, roles.send, roles.receive);
}

void print_times(const std::vector<AblationEntry>& entries, std::FILE* out) {
  fmt::print(out, "{:>5} {:<18} {:<5} {:>8} {:>9}", "lanes", "step", "store", "roles", "copies");
  for (const char* what : {"dispatch", "combine", "round trip", "cycle"}) {
    fmt::print(out, " {:>10} {:>11}", what, "x");
  }
  fmt::print(out, "\n");
  for (const AblationEntry& e : entries) {
    fmt::print(out, "{:>5} {:<18} {:<5} {:>8} {:>9}", e.lanes, e.step, e.store, roles_cell(e.roles),
               fmt::format("{:.2f}/{:.2f}", e.dispatch_copies, e.combine_copies));
    for (std::size_t t = 0; t < kAblationTimes; ++t) {
      const auto time = static_cast<AblationTime>(t);
      fmt::print(out, " {:>10.1f} {:>11}", e.us[t].p50,
                 fmt::format("{:.2f}/{:.2f}", gain(entries[e.on], e, time),
                             gain(entries[e.first], e, time)));
    }
    fmt::print(out, "\n");
  }
}

void print_spent(const std::vector<AblationEntry>& entries, std::FILE* out) {
  fmt::print(out, "{:>5} {:<18} {:<9}", "lanes", "step", "us of a lane");
  for (const char* name : kActivityNames) fmt::print(out, "{:>11}", name);
  fmt::print(out, "{:>11}{:>8}{:>19}\n", "all", "sync", "last row, max");
  for (const AblationEntry& e : entries) {
    for (const AblationTime time : {AblationTime::dispatch, AblationTime::combine}) {
      const Breakdown b = *spent_of(e, time);
      fmt::print(out, "{:>5} {:<18} {:<12}", e.lanes, e.step,
                 kTimeNames[static_cast<std::size_t>(time)]);
      for (const double part : b.us) fmt::print(out, "{:>11.1f}", part);
      fmt::print(out, "{:>11.1f}{:>7.1f}%{:>10.1f}{:>9.1f}\n", b.total(), b.sync_share() * 100,
                 b.last_row_mean, b.last_row_max);
    }
  }
}

const char* verdict_text(const Saving& s) {
  switch (s.verdict) {
    case Verdict::no_gain:
      return s.gained < -s.noise ? "slower" : "within the noise";
    case Verdict::waits:
      return "waits explain it";
    case Verdict::work:
      return "MORE THAN THE WAITS: work was saved, too";
    default:
      return "MORE THAN WAITS AND WORK: look for a fault of the step before";
  }
}

void print_savings(const std::vector<AblationEntry>& entries, std::FILE* out) {
  fmt::print(out, "{:>5} {:<18} {:<12} {:>10} {:>8} {:>10} {:>10}\n", "lanes", "step", "saved us",
             "gained", "noise", "waits", "work");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const AblationEntry& e = entries[i];
    if (e.on == i) continue;
    for (const AblationTime time : kExplained) {
      const Saving s = *saving(entries[e.on], e, time);
      fmt::print(out, "{:>5} {:<18} {:<12} {:>10.1f} {:>8.1f} {:>10.1f} {:>10.1f}  {}\n", e.lanes,
                 e.step, kTimeNames[static_cast<std::size_t>(time)], s.gained, s.noise, s.waits,
                 s.work, verdict_text(s));
    }
  }
}

}  // namespace

const std::vector<AblationStep>& ablation_steps() {
  static const std::vector<AblationStep> steps = {
      {.name = "bsp", .path = Path::bsp},
      {.name = "+ roles", .on = 0, .order = SendOrder::by_token, .adjust = stage_rows},
      {.name = "+ schedule", .on = 1, .adjust = stage_rows},
      {.name = "+ in place", .on = 2},
      with_protocol<Protocol::token_flag_16>(2),
      with_protocol<Protocol::token_flag_128>(2),
      with_protocol<Protocol::token_flag_512>(2),
      with_protocol<Protocol::checksum>(2),
      with_protocol<Protocol::sentinel>(2),
      with_protocol<Protocol::fence>(2),
  };
  return steps;
}

double noise_of(const Summary& us, int blocks) {
  return kNotch * (us.p75 - us.p25) / std::sqrt(static_cast<double>(std::max(blocks, 1)));
}

const char* name(Verdict verdict) {
  switch (verdict) {
    case Verdict::no_gain:
      return "no_gain";
    case Verdict::waits:
      return "waits";
    case Verdict::work:
      return "work";
    default:
      return "unexplained";
  }
}

std::optional<Saving> saving(const AblationEntry& before, const AblationEntry& after,
                             AblationTime time) {
  const auto was = spent_of(before, time);
  const auto is = spent_of(after, time);
  if (!was || !is || &before == &after) return std::nullopt;
  const double before_us = before.of(time).p50;
  const double after_us = after.of(time).p50;
  Saving s{.gained = before_us - after_us,
           .noise = std::hypot(noise_of(before.of(time), before.blocks),
                               noise_of(after.of(time), after.blocks)),
           .waits = was->sync_share() * before_us - is->sync_share() * after_us,
           .work = work_share(*was) * before_us - work_share(*is) * after_us};
  if (s.gained <= s.noise) return s;
  const double most = std::max(s.waits, 0.0) + s.noise;
  s.verdict = Verdict::waits;
  if (s.gained > most) s.verdict = Verdict::work;
  if (s.gained > most + std::max(s.work, 0.0)) s.verdict = Verdict::unexplained;
  return s;
}

Json to_json(const std::vector<AblationEntry>& entries) {
  Json json = Json::array();
  for (const AblationEntry& e : entries) {
    Json item = {
        {"step", e.step},
        {"on", entries[e.on].step},
        {"lanes", e.lanes},
        {"path", e.path},
        {"store", e.store},
        {"roles", {{"count", e.roles.count}, {"send", e.roles.send}, {"receive", e.roles.receive}}},
        {"payload_copies",
         {{"dispatch", rounded(e.dispatch_copies)}, {"combine", rounded(e.combine_copies)}}},
        {"traced", e.spent.has_value()}};
    for (std::size_t t = 0; t < kAblationTimes; ++t) item[kTimeNames[t]] = time_json(entries, e, t);
    json.push_back(std::move(item));
  }
  return json;
}

void print_ablation(const std::vector<AblationEntry>& entries, std::FILE* out) {
  if (entries.empty()) return;
  fmt::print(
      out,
      "ablation expert_major; p50 in us, x: times faster than the step it is built on / than "
      "{}; roles count:send:receive\n",
      entries.front().step);
  print_times(entries, out);
  const auto traced = [](const AblationEntry& e) { return e.spent.has_value(); };
  if (!std::all_of(entries.begin(), entries.end(), traced)) {
    fmt::print(out, "no breakdown of the lanes' time: the library was built with UBEP_TRACE=OFF\n");
    return;
  }
  print_spent(entries, out);
  print_savings(entries, out);
}

}  // namespace ubep::tools
