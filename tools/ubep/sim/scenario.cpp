#include "tools/ubep/sim/scenario.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "sim/layer_run.hpp"
#include "tools/ubep/enum_option.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/option_checks.hpp"

namespace ubep::tools {
namespace {

double gb_s(std::uint64_t rate) { return static_cast<double>(rate) * 1e-9; }

[[noreturn]] void refuse(const std::string& text) {
  throw InputError(fmt::format(
      "--degrade: '{}' is neither link:FROM-TO:FACTOR nor die:RANK:FACTOR, with a factor above 0 "
      "and below 1",
      text));
}

int rank_of(const std::string& digits, const std::string& text) {
  int rank = -1;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, rank);
  if (error != std::errc() || stop != end || rank < 0) refuse(text);
  return rank;
}

double factor_of(const std::string& digits, const std::string& text) {
  double factor = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, factor);
  if (error != std::errc() || stop != end || !(factor > 0 && factor < 1)) refuse(text);
  return factor;
}

sim::Degraded parse(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() != 3 || (parts[0] != "link" && parts[0] != "die")) refuse(text);
  sim::Degraded d{.rank = 0, .to = -1, .factor = factor_of(parts[2], text)};
  if (parts[0] == "die") {
    d.rank = rank_of(parts[1], text);
    return d;
  }
  const std::vector<std::string> ends = split(parts[1], '-');
  if (ends.size() != 2) refuse(text);
  d.rank = rank_of(ends[0], text);
  d.to = rank_of(ends[1], text);
  if (d.rank == d.to) refuse(text);
  return d;
}

std::string text_of(const sim::Degraded& d) {
  return d.to < 0 ? fmt::format("die:{}:{}", d.rank, d.factor)
                  : fmt::format("link:{}-{}:{}", d.rank, d.to, d.factor);
}

}  // namespace

void add_scenario_options(CLI::App& app, SimScenario& s) {
  auto* quant = app.add_option("--quant", s.quant,
                               "dispatched rows: none (as --dtype), int8, fp8, mxfp8 or nvfp4");
  quant->capture_default_str();
  app.add_option("--record-bytes", s.record_bytes, "dispatched rows have this size")
      ->check(CLI::Range(1, 1 << 20))
      ->excludes(quant);
  app.add_option("--degrade", s.degrade,
                 "a link from one rank to another, or all of a rank's, at a part of its rate: "
                 "link:FROM-TO:FACTOR or die:RANK:FACTOR");
  app.add_option("--background", s.background,
                 "GB/s that other traffic takes of each port, both ways")
      ->check(from_to(1e-6, 1e6));
  app.add_flag("--aligned", s.aligned, "all ranks start the combine together, as in `ubep bench`");
}

void apply(const SimScenario& s, sim::LayerOptions& o) {
  using sim::Quant;
  o.quant = one_of(s.quant, "--quant",
                   {Quant::none, Quant::int8, Quant::fp8, Quant::mxfp8, Quant::nvfp4});
  o.record_bytes = s.record_bytes;
  o.aligned = s.aligned;
  if (o.moves_rows && (o.quant != Quant::none || o.record_bytes != 0)) {
    throw InputError("--payload has no meaning with --quant or --record-bytes");
  }
  for (const std::string& text : s.degrade) {
    const sim::Degraded d = parse(text);
    if (std::max(d.rank, d.to) >= o.ranks) {
      throw InputError(fmt::format("--degrade: '{}' names rank {}, there are {}", text,
                                   std::max(d.rank, d.to), o.ranks));
    }
    o.pod.degraded.push_back(d);
  }
  if (s.background >= gb_s(o.pod.port)) {
    throw InputError(fmt::format("--background is {} GB/s, the pod's ports have {}", s.background,
                                 gb_s(o.pod.port)));
  }
  o.pod.background = static_cast<std::uint64_t>(s.background * 1e9);
}

std::string scenario_text(const sim::LayerOptions& o) {
  std::string text;
  if (o.quant != sim::Quant::none) text += fmt::format(", quant {}", sim::name(o.quant));
  if (o.record_bytes != 0) text += fmt::format(", records of {} bytes", o.record_bytes);
  for (const sim::Degraded& d : o.pod.degraded) text += ", degraded " + text_of(d);
  if (o.pod.background != 0) text += fmt::format(", background {} GB/s", gb_s(o.pod.background));
  if (o.aligned) text += ", aligned";
  return text;
}

void add_scenario(const sim::LayerOptions& o, nlohmann::ordered_json& json) {
  json["projection"] = o.pod.projection;
  json["quant"] = sim::name(o.quant);
  json["background_gb_s"] = gb_s(o.pod.background);
  json["degraded"] = nlohmann::ordered_json::array();
  for (const sim::Degraded& d : o.pod.degraded) json["degraded"].push_back(text_of(d));
}

}  // namespace ubep::tools
