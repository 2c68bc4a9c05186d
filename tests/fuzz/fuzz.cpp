// ubep_fuzz: runs seeds of the deterministic simulation, or one seed again.
//
//   ubep_fuzz --seed 1 --minutes 10        seeds 1, 2, 3, ... until the time is over
//   ubep_fuzz --seed 1 --count 1000
//   ubep_fuzz --seed 17 --transcript       one seed: what every rank did and stored, and when
//   ubep_fuzz --seed 17 --shrink           a smaller run that fails, and its transcript
//
// Exit status: 0 = all was well, 1 = a seed failed, 2 = wrong usage.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "protocol/protocols.hpp"
#include "simulation/sim_run.hpp"

namespace {

using ubep::test::Cuts;

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  std::uint64_t step = 1;
  double minutes = 0;
  std::uint64_t stop_after = 5;
  bool transcript = false;
  bool shrink = false;
  bool loses_release = false;
  std::string protocol;
  Cuts cuts;
};

void show(const Options& options, const Cuts& cuts) {
  fmt::print("{}", ubep::test::transcript_of(options.seed, cuts, options.loses_release));
}

void read_protocol(Options& options) {
  if (options.protocol.empty()) return;
  const std::string id = options.protocol.substr(0, options.protocol.find(':'));
  for (const ubep::RowProtocol* p : ubep::all_protocols()) {
    if (id == ubep::name(p->id())) options.cuts.protocol = p->id();
  }
  const bool has_rows = id.size() != options.protocol.size();
  const bool may_have = options.cuts.protocol == ubep::Protocol::checksum;
  if (options.cuts.protocol == ubep::Protocol::automatic || (has_rows && !may_have)) {
    throw CLI::ValidationError("--protocol", options.protocol + " is none");
  }
  if (has_rows) options.cuts.checksum_rows = std::stoi(options.protocol.substr(id.size() + 1));
}

int run_one(const Options& options) {
  if (options.shrink) {
    if (run(make_setup(options.seed, options.cuts, options.loses_release)).error.empty()) {
      fmt::print("seed {} does not fail\n", options.seed);
      return 0;
    }
    show(options, ubep::test::shrink(options.seed, options.loses_release, options.cuts));
    return 1;
  }
  show(options, options.cuts);
  return run(make_setup(options.seed, options.cuts, options.loses_release)).error.empty() ? 0 : 1;
}

int run_many(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::uint64_t events = 0;
  std::uint64_t torn = 0;
  std::uint64_t failed = 0;
  std::uint64_t done = 0;
  for (; options.minutes > 0 ? seconds() < options.minutes * 60 : done < options.count; ++done) {
    const std::uint64_t seed = options.seed + done * options.step;
    const ubep::test::Result result =
        run(ubep::test::make_setup(seed, options.cuts, options.loses_release));
    events += result.events;
    torn += result.torn_puts;
    if (result.error.empty()) continue;
    ++failed;
    fmt::print("seed {}: {}\n", seed, result.error);
    std::fflush(stdout);
    if (failed == options.stop_after) {
      ++done;
      break;
    }
  }
  fmt::print("{} seeds from {}, {} events, {} torn puts, {:.0f} s: {} failed\n", done, options.seed,
             events, torn, seconds(), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Runs seeds of the deterministic simulation", "ubep_fuzz");
  // Digits only: a minus sign would wrap around.
  const auto check_number = [](std::uint64_t low) {
    return [low](const std::string& text) -> std::string {
      const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
      if (!text.empty() && digits && text.size() < 19 && std::stoull(text) >= low) return "";
      return fmt::format("'{}' is not a number from {}, of up to 18 digits", text, low);
    };
  };
  const CLI::Validator number(check_number(0), "NUMBER");
  const CLI::Validator positive(check_number(1), "NUMBER");
  app.add_option("--seed", options.seed, "the first seed")->check(number);
  auto* count = app.add_option("--count", options.count, "how many seeds")->check(positive);
  app.add_option("--step", options.step, "from one seed to the next")->check(positive);
  app.add_option("--minutes", options.minutes, "as many seeds as this time allows")
      ->check(CLI::Range(0.001, 1e6));
  app.add_option("--stop-after", options.stop_after, "failed seeds")->check(positive);
  app.add_flag("--transcript", options.transcript, "show what happens");
  app.add_flag("--shrink", options.shrink, "look for a smaller run that fails");
  app.add_flag("--loses-release", options.loses_release,
               "plant a fault: flags do not wait for what was stored before");
  app.add_option("--schedule", options.cuts.schedule, "another seed for everything but the calls")
      ->check(number);
  app.add_option("--drop", options.cuts.dropped, "operations to leave out")
      ->delimiter(',')
      ->check(CLI::Range(0, 1000));
  app.add_option("--halvings", options.cuts.halvings, "of the numbers of tokens")
      ->check(CLI::Range(0, 64));
  app.add_flag("--no-fates", options.cuts.no_fates, "nobody dies or stands still");
  app.add_flag("--hosts", options.cuts.hosts, "ranks are on several hosts");
  app.add_flag("--absent", options.cuts.absent, "a rank takes no part");
  app.add_flag("--one-lane", options.cuts.one_lane, "one lane for each rank");
  app.add_flag("--strong", options.cuts.strong, "stores are seen at once");
  app.add_flag("--prompt", options.cuts.prompt, "no hesitation, no jitter");
  app.add_option("--protocol", options.protocol,
                 "of pushed rows, on memory that carries it: put-with-signal, tff-16, tff-128, "
                 "tff-512, dc, dc:ROWS, sp or fence");
  app.add_flag("--loses-signal", options.cuts.loses_signal,
               "plant a fault: the words of rows do not wait for them");
  app.add_option("--claims-unit", options.cuts.claims_unit,
                 "plant a fault: the fabric says that it never tears stores of this size")
      ->check(CLI::Range(8, 4096));
  try {
    app.parse(argc, argv);
    read_protocol(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.transcript || options.shrink) return run_one(options);
  if (count->count() == 0 && options.minutes == 0) return run_one(options);
  return run_many(options);
}
