// ubep_neighbour_bench: how the library gets along with whoever else wants the cores.
//
// Ranks whose OpenMP threads compute, then exchange (one lane with the others at the barrier, or
// all lanes stepping), alone and beside a foreign process that computes on one thread.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "bench/neighbour/ground.hpp"
#include "bench/neighbour/ranks.hpp"
#include "tools/ubep/machine.hpp"
#include "tools/ubep/summary.hpp"
#include "ubep/ubep.hpp"

namespace ubep::bench {
namespace {

// A segment of all ranks, in microseconds.
struct Figures {
  tools::Summary cycle;
  tools::Summary dispatch;
  tools::Summary combine;
  double cores = 0;
};

Figures figures_of(const Ground& ground, int ranks, Segment segment) {
  std::vector<double> lists[3];
  Figures figures;
  double wall = 0;
  double cpu = 0;
  for (int r = 0; r < ranks; ++r) {
    const Times& times =
        ground.times[static_cast<std::size_t>(r)][static_cast<std::size_t>(segment)];
    const std::span<const double> from[] = {times.of(times.cycle), times.of(times.dispatch),
                                            times.of(times.combine)};
    for (std::size_t i = 0; i < 3; ++i) {
      for (const double seconds : from[i]) lists[i].push_back(seconds * 1e6);
    }
    wall += times.wall;
    cpu += times.cpu;
  }
  figures.cycle = tools::summarize(std::move(lists[0]));
  figures.dispatch = tools::summarize(std::move(lists[1]));
  figures.combine = tools::summarize(std::move(lists[2]));
  figures.cores = cpu / (wall / ranks);
  return figures;
}

double step_us(const Ground& ground, int segment) {
  const ForeignSteps& steps = ground.steps[static_cast<std::size_t>(segment)];
  return steps.seconds / steps.steps * 1e6;
}

void print_header() {
  fmt::print("{:>5} {:>7} {:>6}  {:22} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>6}  {:>9} {:>5}\n",
             "ranks", "threads", "tokens", "exchange", "cycle p50", "mean", "disp p50", "mean",
             "comb p50", "mean", "cores", "foreign", "x");
}

void print_segment(const Setting& setting, const Ground& ground, Segment segment) {
  static constexpr const char* kNames[] = {"one lane", "all lanes", "one lane, beside",
                                           "all lanes, beside"};
  const Figures f = figures_of(ground, setting.ranks, segment);
  fmt::print("{:5} {:7} {:6}  {:22} {:9.1f} {:9.1f} {:8.1f} {:8.1f} {:8.1f} {:8.1f} {:6.2f}",
             setting.ranks, setting.threads, setting.tokens, kNames[segment], f.cycle.p50,
             f.cycle.avg, f.dispatch.p50, f.dispatch.avg, f.combine.p50, f.combine.avg, f.cores);
  if (segment == one_lane_beside || segment == all_lanes_beside) {
    fmt::print("  {:9.1f} {:5.2f}", step_us(ground, segment),
               step_us(ground, segment) / step_us(ground, kForeignAlone));
  }
  fmt::print("\n");
}

pid_t fork_foreign(const Setting& setting, Ground& ground) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  run_foreign(setting, ground);
  _exit(0);
}

double seconds_of(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

// CPU seconds since some moment: of the whole machine, and of this program's ended children.
struct CpuTime {
  double all = 0;
  double ours = 0;
};

CpuTime cpu_time() {
  CpuTime time;
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  for (int field = 0; field < 8; ++field) {
    double value = 0;
    file >> value;
    const bool idle = field == 3 || field == 4;
    if (!idle) time.all += value / ticks;
  }
  rusage usage = {};
  getrusage(RUSAGE_CHILDREN, &usage);
  time.ours = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  return time;
}

// False when a rank failed.
bool measure(const Setting& setting) {
  Ground& ground = Ground::make();
  const CpuTime before = cpu_time();
  const double begin = now();
  const pid_t foreign = fork_foreign(setting, ground);
  if (foreign < 0) return false;
  const std::vector<int> statuses = fork_ranks(setting.ranks, [&](const Bootstrap& bootstrap) {
    run_rank(setting, bootstrap, ground);
    return 0;
  });
  ground.foreign.store(Ground::kEnd);
  waitpid(foreign, nullptr, 0);
  const bool good = std::all_of(statuses.begin(), statuses.end(), [](int s) { return s == 0; });
  if (good) {
    for (int segment = 0; segment < num_segments; ++segment) {
      print_segment(setting, ground, static_cast<Segment>(segment));
    }
    const CpuTime after = cpu_time();
    fmt::print("{:22} others on this machine used {:.2f} cores meanwhile\n", "",
               (after.all - before.all - (after.ours - before.ours)) / (now() - begin));
    std::fflush(stdout);
  }
  Ground::unmake(ground);
  return good;
}

void print_probe(const char* when) {
  const tools::Machine machine = tools::read_machine();
  fmt::print("{}: {} CPUs, {}, placement {}, flag {:.0f} ns\n", when, machine.cpus, machine.model,
             tools::placement_name(machine.probe.placement),
             machine.probe.flag_one_way_ns.value_or(0));
}

// "2x1": ranks x threads.
Setting with_layout(Setting setting, const std::string& text) {
  int used = 0;
  const int numbers = std::sscanf(text.c_str(), "%dx%d%n", &setting.ranks, &setting.threads, &used);
  const bool whole = numbers == 2 && static_cast<std::size_t>(used) == text.size();
  if (!whole || setting.ranks < 1 || setting.ranks > kMostRanks || setting.threads < 1) {
    throw std::invalid_argument("'" + text + "': layouts are RANKSxTHREADS, up to 16 ranks");
  }
  return setting;
}

int run(int argc, char** argv) {
  Setting setting;
  std::vector<std::string> layouts = {"1x2", "2x1", "2x2", "4x1", "8x1"};
  CLI::App app("How UBEP gets along with its neighbours on the cores");
  app.add_option("layouts", layouts, "ranks x threads, as 2x1");
  app.add_option("--tokens", setting.tokens, "of each rank")->check(CLI::Range(1, 65536));
  app.add_option("--hidden", setting.hidden)->check(CLI::Range(1, 65536));
  app.add_option("--gemm-rows", setting.gemm_rows)->check(CLI::Range(4, 65536));
  app.add_option("--blocks", setting.blocks)->check(CLI::Range(1, 1000));
  app.add_option("--cycles", setting.cycles, "of a block")->check(CLI::Range(3, 8000));
  CLI11_PARSE(app, argc, argv);
  print_probe("before");
  fmt::print(
      "times in microseconds; foreign: one step of its GEMM beside the ranks, x over alone\n");
  print_header();
  for (const std::string& layout : layouts) {
    if (!measure(with_layout(setting, layout))) return 1;
  }
  print_probe("after");
  return 0;
}

}  // namespace
}  // namespace ubep::bench

int main(int argc, char** argv) {
  try {
    return ubep::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "ubep_neighbour_bench: {}\n", error.what());
    return 2;
  }
}
