// ubep_chaos: groups of processes that dispatch and combine while one of them is killed, stopped or
// leaves, at a random moment, set-up included.
//
//   ubep_chaos --kills 1000 --seed 1
//
// Survivors compare every byte with the reference. Exit status: 0 = no hang, no wrong byte, no
// leak; 1 = there was one; 2 = wrong usage. The last lines are a table in Markdown.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/random.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace {

using namespace ubep;
using namespace ubep::test;
using Clock = std::chrono::steady_clock;

constexpr int kRoundsAfter = 6;
constexpr std::chrono::seconds kTimeout{4};    // of the library's calls
constexpr std::chrono::seconds kPatience{12};  // beyond which a rank hangs

enum class Mishap { kill, stop, exit, close, fork_and_kill };
constexpr std::array kMishaps = {Mishap::kill, Mishap::stop, Mishap::exit, Mishap::close,
                                 Mishap::fork_and_kill};
constexpr std::array kNames = {"SIGKILL", "SIGSTOP, then SIGCONT", "exit without close", "close",
                               "SIGKILL, a forked child lives on"};

enum Ending { kGood, kWrong = 3, kUnexpected = 4, kSetup = 5 };

// What a rank tells the parent.
struct Report {
  std::atomic<int> rounds = 0;
  std::atomic<bool> created = false;
  std::atomic<std::int64_t> heard_ns = 0;  // of the loss
};

std::int64_t now_ns() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

struct Scene {
  Problem problem;
  CommunicatorOptions options;
  DispatchOptions dispatch;
  Mishap mishap = Mishap::kill;
  int victim = 0;
  int delay_us = 0;  // of the mishap, from the start of the processes on
  int stopped_us = 0;
  std::string job;
};

Scene make_scene(std::uint64_t seed) {
  Random random(seed);
  Scene scene;
  const int ranks = random.between(2, 6);
  const Layout layout = random.pick<Layout>(
      {Layout::rank_major, Layout::rank_major, Layout::expert_major, Layout::expert_padded});
  scene.problem = make_problem({.ranks = ranks,
                                .experts_per_rank = random.between(1, 3),
                                .tokens = random.between(1, 24),
                                .hidden = random.between(1, 400),
                                .topk = random.between(1, 3),
                                .layout = layout,
                                .seed = seed});
  if (layout == Layout::expert_padded) scene.problem.expert_capacity = 24 * ranks * 3;
  scene.options = options_for(scene.problem);
  scene.options.slots = random.between(1, 3);
  scene.options.store = random.one_in(2) ? Store::near : Store::far;
  scene.options.timeout = kTimeout;
  scene.dispatch.layout = layout;
  scene.dispatch.path = layout == Layout::rank_major
                            ? random.pick<Path>({Path::read, Path::pull, Path::push})
                            : random.pick<Path>({Path::automatic, Path::pull, Path::push});
  scene.mishap = kMishaps[static_cast<std::size_t>(random.below(kMishaps.size()))];
  scene.victim = random.below(ranks);
  scene.delay_us = random.below(random.one_in(4) ? 4'000 : 40'000);
  scene.stopped_us = random.between(1'000, 60'000);
  scene.job = fmt::format("ubep-chaos/{}/{}", getpid(), seed);
  return scene;
}

class Rank {
 public:
  Rank(const Scene& scene, int rank, const SharedArray<Report>& reports, int& stop)
      : scene_(scene), rank_(rank), report_(reports[rank]), stop_(stop) {}

  int live() {
    Bootstrap bootstrap{.rank = rank_, .size = scene_.problem.num_ranks(), .job = scene_.job};
    bootstrap.timeout = kTimeout;
    try {
      Communicator comm = Communicator::create(bootstrap, scene_.options);
      report_.created = true;
      return run(comm);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::setup) return kSetup;
      fmt::print(stderr, "{}: rank {}: {}\n", scene_.job, rank_, error.what());
      return kUnexpected;
    }
  }

 private:
  int run(Communicator& comm) {
    Worker worker(scene_.problem, rank_, scene_.dispatch);
    const Clock::time_point mine = Clock::now() + std::chrono::microseconds(scene_.delay_us);
    for (int round = 0; round <= stop_.load(); ++round) {
      if (rank_ == scene_.victim && Clock::now() > mine) go(worker, comm);
      if (!accept(worker.dispatch(comm), round)) return kUnexpected;
      if (!same(worker.received_difference(), round)) return kWrong;
      if (!accept(worker.combine(comm), round)) return kUnexpected;
      if (!same(worker.out_difference(std::uint64_t{1} << scene_.victim), round)) return kWrong;
      report_.rounds = round + 1;
    }
    return kGood;
  }

  // What the victim does itself.
  void go(Worker& worker, Communicator& comm) {
    if (scene_.mishap == Mishap::exit) {
      (void)worker.start_dispatch(comm);
      _exit(kGood);
    }
    if (scene_.mishap == Mishap::close) {
      comm.close();
      _exit(kGood);
    }
    if (scene_.mishap == Mishap::fork_and_kill && fork() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      _exit(kGood);
    }
    if (scene_.mishap == Mishap::fork_and_kill) kill(getpid(), SIGKILL);
  }

  // ok, or the news of the victim's end; then all agree on the last round.
  bool accept(const Status& status, int round) {
    if (status.ok()) return true;
    const bool loss = status.code == Code::peer_lost && scene_.mishap != Mishap::stop &&
                      status.missing == std::uint64_t{1} << scene_.victim && report_.heard_ns == 0;
    if (!loss) {
      fmt::print(stderr, "{}: {}, rank {}, round {}: {}\n", scene_.job,
                 kNames[static_cast<std::size_t>(scene_.mishap)], rank_, round, status.message());
      return false;
    }
    report_.heard_ns = now_ns();
    int latest = stop_.load();
    while (latest > round + kRoundsAfter &&
           !stop_.compare_exchange_weak(latest, round + kRoundsAfter)) {
    }
    return true;
  }

  bool same(const std::string& difference, int round) const {
    if (difference.empty()) return true;
    fmt::print(stderr, "{}: {}, rank {}, round {}: {}\n", scene_.job,
               kNames[static_cast<std::size_t>(scene_.mishap)], rank_, round, difference);
    return false;
  }

  const Scene& scene_;
  int rank_;
  Report& report_;
  std::atomic_ref<int> stop_;
};

struct Tally {
  int runs = 0, setups = 0, hangs = 0, wrong = 0, unexpected = 0;
  std::vector<double> notice_ms;
};

struct Group {
  std::vector<pid_t> ranks;
  std::vector<int> statuses;  // -1 = alive

  // Whether all have ended within the time; the others are killed.
  bool wait(Clock::time_point until) {
    for (;;) {
      bool alive = false;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        int status = 0;
        if (statuses[r] >= 0) continue;
        if (waitpid(ranks[r], &status, WNOHANG) == ranks[r]) {
          statuses[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        } else {
          alive = true;
        }
      }
      if (!alive) return true;
      if (Clock::now() > until) break;
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (statuses[r] >= 0) continue;
      kill(ranks[r], SIGKILL);
      waitpid(ranks[r], nullptr, 0);
    }
    return false;
  }
};

// Lets the ranks go on for some rounds after a stop, all the same number.
void end_after(const SharedArray<Report>& reports, int& stop) {
  int most = 0;
  for (std::size_t r = 0; r < reports.size(); ++r) most = std::max(most, reports[r].rounds.load());
  std::atomic_ref<int>(stop).store(most + 200);
}

void run_scene(const Scene& scene, Tally& tally) {
  const int size = scene.problem.num_ranks();
  const SharedArray<Report> reports(static_cast<std::size_t>(size));
  const SharedArray<int> stop(1);
  stop[0] = INT_MAX - kRoundsAfter;
  Group group;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) _exit(Rank(scene, rank, reports, stop[0]).live());
    group.ranks.push_back(pid);
    group.statuses.push_back(-1);
  }
  const pid_t victim = group.ranks[static_cast<std::size_t>(scene.victim)];
  std::this_thread::sleep_for(std::chrono::microseconds(scene.delay_us));
  const std::int64_t begin = now_ns();
  if (scene.mishap == Mishap::kill) kill(victim, SIGKILL);
  if (scene.mishap == Mishap::stop) {
    kill(victim, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::microseconds(scene.stopped_us));
    kill(victim, SIGCONT);
    end_after(reports, stop[0]);
  }
  ++tally.runs;
  if (!group.wait(Clock::now() + kPatience)) ++tally.hangs;
  bool setup = false;
  for (int rank = 0; rank < size; ++rank) {
    const int status = group.statuses[static_cast<std::size_t>(rank)];
    if (rank == scene.victim && scene.mishap != Mishap::stop) continue;
    setup = setup || status == kSetup;
    if (status == kWrong) ++tally.wrong;
    if (status != kGood && status != kWrong && status != kSetup && status >= 0) ++tally.unexpected;
    const std::int64_t heard = reports[rank].heard_ns;
    if (heard != 0 && scene.mishap == Mishap::kill) {
      tally.notice_ms.push_back(static_cast<double>(heard - begin) * 1e-6);
    }
  }
  // A victim that was there is no reason to fail in set-up.
  if (setup && scene.mishap == Mishap::stop) ++tally.unexpected;
  if (setup) ++tally.setups;
}

int open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

int shared_files() {
  const std::filesystem::directory_iterator files("/dev/shm");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

std::string quantile(std::vector<double> values, double q) {
  if (values.empty()) return "-";
  std::sort(values.begin(), values.end());
  return fmt::format("{:.1f}",
                     values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))]);
}

int report(const std::vector<Tally>& tallies, int leaks) {
  fmt::print(
      "| mishap | runs | before set-up was complete | hangs | wrong bytes | wrong answers | "
      "noticed "
      "after ms, p50 / p99 |\n|---|---|---|---|---|---|---|\n");
  int bad = leaks;
  for (std::size_t i = 0; i < tallies.size(); ++i) {
    const Tally& t = tallies[i];
    fmt::print("| {} | {} | {} | {} | {} | {} | {} / {} |\n", kNames[i], t.runs, t.setups, t.hangs,
               t.wrong, t.unexpected, quantile(t.notice_ms, 0.5), quantile(t.notice_ms, 0.99));
    bad += t.hangs + t.wrong + t.unexpected;
  }
  fmt::print("\nLeft behind: {} (open files of the parent, files in /dev/shm)\n", leaks);
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int kills = 100;
  std::uint64_t seed = 1;
  CLI::App app{"Processes that are killed, stopped or leave while they dispatch and combine"};
  app.add_option("--kills", kills, "groups to run, one mishap in each")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--seed", seed, "of the first group");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const int files = open_files();
  const int shared = shared_files();
  std::vector<Tally> tallies(kMishaps.size());
  for (int i = 0; i < kills; ++i) {
    const Scene scene = make_scene(seed + static_cast<std::uint64_t>(i));
    run_scene(scene, tallies[static_cast<std::size_t>(scene.mishap)]);
  }
  const int leaks = std::max(0, open_files() - files) + std::max(0, shared_files() - shared);
  return report(tallies, leaks);
}
