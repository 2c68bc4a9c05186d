// The command `ubep`. Exit codes: exit_code.hpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "tools/ubep/bench.hpp"
#include "tools/ubep/bench_options.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/run.hpp"
#include "ubep/ubep.hpp"

int main(int argc, char** argv) {
  using namespace ubep::tools;
  CLI::App app("Unified-Bus Expert Parallelism: moves the tokens of MoE models between ranks",
               "ubep");
  app.set_version_flag("--version", ubep::build_facts());
  app.require_subcommand(1);
  BenchOptions bench;
  CLI::App* bench_app = app.add_subcommand("bench", "measure dispatch, combine and whole cycles");
  add_bench_options(*bench_app, bench);
  RunOptions run;
  CLI::App* run_app = app.add_subcommand("run", "run a MoE layer over a safetensors file");
  add_run_options(*run_app, run);
  try {
    app.parse(argc, argv);
    return run_app->parsed() ? run_file(run) : run_bench(*bench_app, bench);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "ubep: {}\n", error.what());
    return kUsage;
  }
}
