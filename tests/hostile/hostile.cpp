// ubep_hostile: groups of processes that dispatch and combine while one of them writes what it
// likes into all memory that it can write.
//
//   ubep_hostile --seconds 60 --seed 1
//
// The others must come back from every call in time with a verdict, must not crash, and find the
// rows and sums of honest ranks right wherever no inbox is involved. Exit status: 0 = so it was;
// 1 = it was not; 2 = wrong usage. The last lines are a table in Markdown.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "api/checks.hpp"
#include "hostile/honest.hpp"
#include "hostile/vandal.hpp"
#include "support/rank_run.hpp"
#include "support/ranks.hpp"

namespace {

using namespace ubep;
using namespace ubep::test;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTimeout{250};  // of the library's calls
constexpr std::chrono::seconds kSetUp{5};
constexpr std::chrono::seconds kPatience{40};  // beyond which a rank hangs

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

Protocol draw_protocol(Random& random) {
  return random.one_in(3) ? Protocol::automatic : static_cast<Protocol>(random.between(1, 7));
}

DispatchOptions draw_dispatch(Layout layout, bool push, Random& random) {
  DispatchOptions options;
  options.layout = layout;
  std::vector<Path> paths = {Path::pull, Path::pull};
  if (layout == Layout::rank_major) paths = {Path::read, Path::pull, Path::read, Path::allgather};
  if (push) paths.insert(paths.end(), {Path::push, Path::automatic});
  if (push && layout == Layout::expert_major) paths.push_back(Path::bsp);
  options.path = random.pick(paths);
  if (layout == Layout::rank_major && random.one_in(2)) options.weighting = Weighting::owner;
  if (is_by_expert(layout)) options.by_expert = random.one_in(3);
  if (random.one_in(3)) options.quant = static_cast<Quant>(random.between(1, 5));
  return options;
}

Scene make_scene(std::uint64_t seed) {
  Random random(seed);
  Scene scene;
  const int ranks = random.between(3, 4);
  const Layout layout = random.pick<Layout>(
      {Layout::rank_major, Layout::expert_major, Layout::expert_major, Layout::expert_padded});
  const int tokens = random.between(1, 24);
  scene.problem = make_problem({.ranks = ranks,
                                .experts_per_rank = random.between(1, 3),
                                .tokens = tokens,
                                .hidden = random.between(1, 300),
                                .topk = random.between(1, 3),
                                .layout = layout,
                                .seed = seed});
  Problem& problem = scene.problem;
  if (layout == Layout::expert_padded) {
    problem.expert_capacity = ranks * tokens * problem.topk;  // of the worst that one may claim
  }
  scene.options = options_for(problem);
  scene.options.push = random.one_in(2);
  scene.options.bsp = scene.options.push && random.one_in(2);
  if (scene.options.push) scene.options.protocol = draw_protocol(random);
  scene.options.stage_pushed = scene.options.push && random.one_in(4);
  scene.options.slots = random.between(1, 3);
  scene.options.store = random.one_in(2) ? Store::near : Store::far;
  scene.options.timeout = kTimeout;
  scene.dispatch = draw_dispatch(layout, scene.options.push, random);
  if (scene.dispatch.path == Path::bsp) scene.options.bsp = true;
  problem.every_token = scene.dispatch.path == Path::allgather;
  problem.quant = scene.dispatch.quant;
  scene.by_expert = is_by_expert(layout) && scene.dispatch.path == Path::pull && random.one_in(3);
  scene.hostile = random.below(ranks);
  scene.rounds = random.between(10, 150);
  scene.job = fmt::format("ubep-hostile/{}/{}", getpid(), seed);
  return scene;
}

Bootstrap bootstrap_of(const std::string& job, int rank, int size) {
  Bootstrap bootstrap{.rank = rank, .size = size, .job = job};
  bootstrap.timeout = kSetUp;
  return bootstrap;
}

// What the hostile rank's process does besides; its own end is nobody's concern.
void hide() {
  const int nothing = open("/dev/null", O_WRONLY);
  dup2(nothing, STDERR_FILENO);
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE}) {
    signal(number, [](int) { _exit(0); });
  }
}

// A small workload whose every row can be traced to its source.
int live(const Scene& scene, int rank, Vandal* vandal, Report& report) {
  try {
    if (vandal != nullptr) vandal->start();
    Communicator comm = Communicator::create(
        bootstrap_of(scene.job, rank, scene.problem.num_ranks()), scene.options);
    const int ending = Honest(scene, rank, report).run(comm, [&] {
      if (vandal != nullptr) vandal->strike();
    });
    if (vandal != nullptr) vandal->stop();
    return ending;
  } catch (const Error& error) {
    if (vandal != nullptr) vandal->stop();
    if (error.code() == ErrorCode::setup) {
      ++report.refused;
      return kGood;
    }
    fmt::print(stderr, "{}: rank {}: {}\n", scene.job, rank, error.what());
    return kUnexpected;
  }
}

// By the first words of a failed call's message; a difference in rows is none of a Status.
Code code_in(const std::string& message) {
  for (const Code code : {Code::timeout, Code::peer_lost, Code::mismatch, Code::corrupt,
                          Code::no_capacity, Code::not_ready}) {
    if (message.find(std::string(name(code)) + ": ") != std::string::npos) return code;
  }
  return Code::ok;
}

// A random case: every kind of call and option. Differences are not looked at, but nothing may
// crash or hang.
int live_case(const Case& c, const Bootstrap& bootstrap, Vandal* vandal, Report& report) {
  if (vandal != nullptr) vandal->start();
  int ending = kGood;
  try {
    RankRun run(c, bootstrap.rank, c.seed);
    run.set_patience(4 * kTimeout);
    run.run(bootstrap);
    report.calls[0] += std::ssize(c.operations);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::setup) {
      ++report.refused;
    } else {
      fmt::print(stderr, "{}: rank {}: {}\n", bootstrap.job, bootstrap.rank, error.what());
      ending = kUnexpected;
    }
  } catch (const std::exception& error) {
    const Code code = code_in(error.what());
    ++report.calls[static_cast<std::size_t>(code == Code::not_ready ? Code::timeout : code)];
  }
  if (vandal != nullptr) vandal->stop();
  return ending;
}

struct Tally {
  std::int64_t groups = 0, wrong = 0, unexpected = 0, overdue = 0, crashes = 0;
  std::array<std::int64_t, kCodes> calls = {};
  std::int64_t rows = 0, tokens = 0, refused = 0;

  bool bad() const { return wrong + unexpected + overdue + crashes != 0; }
};

// One rank of a group, in its own process.
using Life = std::function<int(int rank, Report& report)>;

void run_group(int size, int hostile, const std::string& job, const Life& life, Tally& tally) {
  const SharedArray<Report> reports(index(size));
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (rank == hostile) hide();
      _exit(life(rank, reports[rank]));
    }
    ranks.push_back(pid);
  }
  const std::vector<int> statuses = await_children(ranks, kPatience, hostile);
  ++tally.groups;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == hostile) continue;
    const int status = statuses[index(rank)];
    const bool hung = status < 0 || status == kOverdue;
    if (hung) ++tally.overdue;
    if (status == kWrongBytes) ++tally.wrong;
    if (status == kUnexpected) ++tally.unexpected;
    const bool known = status == kGood || status == kWrongBytes || status == kUnexpected;
    if (!hung && !known) ++tally.crashes;
    if (status != kGood) fmt::print(stderr, "{}: rank {}: status {}\n", job, rank, status);
    const Report& report = reports[rank];
    for (std::size_t i = 0; i < kCodes; ++i) tally.calls[i] += report.calls[i];
    tally.rows += report.rows;
    tally.tokens += report.tokens;
    tally.refused += report.refused;
  }
}

void run_scene(std::uint64_t seed, const Mischief& mischief, Tally& tally) {
  const Scene scene = make_scene(seed);
  const int size = scene.problem.num_ranks();
  const Life life = [&](int rank, Report& report) {
    if (rank != scene.hostile) return live(scene, rank, nullptr, report);
    Vandal vandal(make_config(scene.options, size), rank, mischief);
    return live(scene, rank, &vandal, report);
  };
  run_group(size, scene.hostile, scene.job, life, tally);
}

void run_random_case(std::uint64_t seed, const Mischief& mischief, Tally& tally) {
  Random random(seed);
  Case c;
  do {
    c = make_case(random.next(), {.max_ranks = 4, .max_operations = 10, .max_elements = 4096});
  } while (c.num_ranks < 3 || c.num_ranks > 4);
  expect(c);
  c.options.timeout = kTimeout;
  const int hostile = random.below(c.num_ranks);
  const std::string job = fmt::format("ubep-hostile/{}/{}", getpid(), seed);
  const Life life = [&](int rank, Report& report) {
    const Bootstrap bootstrap = bootstrap_of(job, rank, c.num_ranks);
    if (rank != hostile) return live_case(c, bootstrap, nullptr, report);
    Vandal vandal(make_config(c.options, c.num_ranks), rank, mischief);
    return live_case(c, bootstrap, &vandal, report);
  };
  run_group(c.num_ranks, hostile, job, life, tally);
}

std::int64_t report(const std::vector<Tally>& tallies) {
  fmt::print(
      "| a rank writes into | groups | calls | ok | peer_lost | mismatch | corrupt | timeout | "
      "rows, tokens compared | wrong | too late | crashed | other errors |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::int64_t bad = 0;
  for (std::size_t i = 0; i < tallies.size(); ++i) {
    const Tally& t = tallies[i];
    const auto of = [&](Code code) { return t.calls[static_cast<std::size_t>(code)]; };
    std::int64_t calls = 0;
    for (const std::int64_t n : t.calls) calls += n;
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {}, {} | {} | {} | {} | {} |\n",
               name(static_cast<Target>(i)), t.groups, calls, of(Code::ok), of(Code::peer_lost),
               of(Code::mismatch), of(Code::corrupt), of(Code::timeout), t.rows, t.tokens, t.wrong,
               t.overdue, t.crashes, t.unexpected);
    if (t.bad()) ++bad;
  }
  return bad;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 1;
  bool only = false;
  CLI::App app{"Processes that dispatch and combine while one of them writes what it likes"};
  app.add_option("--seconds", seconds, "to go on for")->check(CLI::Range(0.0, 1e6));
  app.add_option("--seed", seed, "of the first group");
  app.add_flag("--only", only, "that group and no other");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  std::vector<Tally> tallies(kTargets);
  std::uint64_t next = seed;
  for (; next == seed || (!only && Clock::now() < until); ++next) {
    Random random(next, 1, 0);
    const auto target = next % kTargets;
    const Mischief mischief = make_mischief(static_cast<Target>(target), random);
    Tally& tally = tallies[target];
    random.one_in(3) ? run_random_case(next, mischief, tally) : run_scene(next, mischief, tally);
  }
  const std::int64_t bad = report(tallies);
  fmt::print("\n{} groups from seed {}\n", next - seed, seed);
  const bool compared = std::any_of(tallies.begin(), tallies.end(),
                                    [](const Tally& t) { return t.rows > 0 && t.tokens > 0; });
  if (!compared && !only) fmt::print(stderr, "nothing was compared\n");
  return bad == 0 && (compared || only) ? 0 : 1;
}
