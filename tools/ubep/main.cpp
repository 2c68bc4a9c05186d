// The command `ubep`. Exit codes: exit_code.hpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "tools/ubep/bench.hpp"
#include "tools/ubep/bench_options.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/info.hpp"
#include "tools/ubep/launched.hpp"
#include "tools/ubep/ps.hpp"
#include "tools/ubep/run.hpp"
#include "ubep/ubep.hpp"
#ifdef UBEP_HAVE_SIM
#include "tools/ubep/sim/probe.hpp"
#include "tools/ubep/sim/sim.hpp"
#include "tools/ubep/sim/tpot.hpp"
#endif

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
  CLI::App* info_app = app.add_subcommand("info", "the build, and what there is between hosts");
  PsOptions ps;
  CLI::App* ps_app = app.add_subcommand("ps", "what the ranks of running jobs do and wait for");
  add_ps_options(*ps_app, ps);
#ifdef UBEP_HAVE_SIM
  SimCommand sim;
  CLI::App* sim_app = app.add_subcommand("sim", "dispatch and combine on a pod, in virtual time");
  add_sim_options(*sim_app, sim);
  TpotCommand tpot;
  CLI::App* tpot_app = sim_app->add_subcommand("tpot", "a model's decode step, with bsp and push");
  add_tpot_options(*tpot_app, tpot);
  ProbeCommand probe;
  CLI::App* probe_app = app.add_subcommand("probe", "describe two CPUs of this machine as a pod");
  add_probe_options(*probe_app, probe);
#endif
  try {
    app.parse(argc, argv);
    if (bench_app->parsed()) return run_bench(*bench_app, bench);
    if (info_app->parsed()) return run_info();
    if (ps_app->parsed()) return run_ps(ps);
#ifdef UBEP_HAVE_SIM
    if (tpot_app->parsed()) return run_tpot(*tpot_app, tpot);
    if (sim_app->parsed()) return run_sim(*sim_app, sim);
    if (probe_app->parsed()) return run_probe(*probe_app, probe);
#endif
    take_world(*run_app, run.ranks);
    return run_file(run);
  } catch (const CLI::ParseError& error) {
    print_once([&] { (void)app.exit(error); });
    return error.get_exit_code() == 0 ? kOk : kUsage;
  } catch (const Failed& failed) {
    print_once([&] { fmt::print(stderr, "ubep: {}\n", failed.status.message()); });
    return exit_code_of(failed.status.code);
  } catch (const std::exception& error) {
    print_once([&] { fmt::print(stderr, "ubep: {}\n", error.what()); });
    return kUsage;
  }
}
