// ubep_chaos: groups of processes that dispatch and combine while one or two of them are killed,
// stopped, leave, or fork a child that calls the library, at a random moment, set-up included.
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
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/leftovers.hpp"
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

enum class Mishap { kill, stop, exit, close, fork_and_kill, long_stop, fork_and_call, two };
constexpr std::array kMishaps = {
    Mishap::kill,          Mishap::stop,      Mishap::exit,          Mishap::close,
    Mishap::fork_and_kill, Mishap::long_stop, Mishap::fork_and_call, Mishap::two};
constexpr std::array kNames = {"SIGKILL",
                               "SIGSTOP, then SIGCONT",
                               "exit without close",
                               "close",
                               "SIGKILL, a forked child lives on",
                               "SIGSTOP for longer than the others wait",
                               "a forked child calls the library",
                               "SIGKILL of two at once"};

enum Ending { kGood, kWrong = 3, kUnexpected = 4, kSetup = 5, kLeak = 6 };

// What a rank tells the parent.
struct Report {
  std::atomic<int> rounds = 0;
  std::atomic<bool> created = false;
  std::atomic<std::int64_t> heard_ns = 0;  // of the first loss
  std::atomic<int> timeouts = 0;           // of calls that were gone on with
  std::atomic<int> refusals = 0;           // of a forked child's calls
};

std::int64_t now_ns() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

struct Scene {
  Problem problem;
  CommunicatorOptions options;
  DispatchOptions dispatch;
  Mishap mishap = Mishap::kill;
  int victim = 0;
  std::uint64_t victims = 1;  // bit r: rank r is one
  int delay_us = 0;           // of the mishap, from the start of the processes on
  int stopped_us = 0;
  bool pending = false;  // the child is forked while an operation is under way
  std::string job;

  const char* name() const { return kNames[static_cast<std::size_t>(mishap)]; }
  bool is_victim(int rank) const { return (victims >> rank & 1) != 0; }
  // Whether the victim is there to the end.
  bool survives() const {
    return mishap == Mishap::stop || mishap == Mishap::long_stop || mishap == Mishap::fork_and_call;
  }
};

Path pick_path(Layout layout, Random& random) {
  if (layout == Layout::rank_major) {
    return random.pick<Path>({Path::read, Path::pull, Path::push, Path::allgather});
  }
  if (layout == Layout::expert_padded) {
    return random.pick<Path>({Path::automatic, Path::pull, Path::push});
  }
  return random.pick<Path>({Path::automatic, Path::pull, Path::push, Path::bsp});
}

void draw_mishap(Scene& scene, int ranks, Random& random) {
  scene.mishap = kMishaps[static_cast<std::size_t>(random.below(kMishaps.size()))];
  scene.victim = random.below(ranks);
  scene.victims = std::uint64_t{1} << scene.victim;
  if (scene.mishap == Mishap::two) {
    scene.victims |= std::uint64_t{1} << (scene.victim + random.between(1, ranks - 1)) % ranks;
  }
  scene.delay_us = random.below(random.one_in(4) ? 4'000 : 40'000);
  scene.stopped_us = random.between(1'000, 60'000);
  scene.pending = random.one_in(2);
  scene.options.timeout = kTimeout;
  if (scene.mishap == Mishap::long_stop) {
    scene.options.timeout = std::chrono::milliseconds(random.between(10, 60));
    scene.stopped_us = random.between(80'000, 300'000);
  }
}

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
  scene.dispatch.layout = layout;
  scene.dispatch.path = pick_path(layout, random);
  scene.problem.every_token = scene.dispatch.path == Path::allgather;
  draw_mishap(scene, ranks, random);
  scene.job = fmt::format("ubep-chaos/{}/{}", getpid(), seed);
  return scene;
}

// What a forked child gets of each call: an error at once.
int calls_refused(Communicator& comm, Worker& worker) {
  alarm(3);
  Rows x;
  const std::vector<std::function<void()>> calls{
      [&] { (void)worker.dispatch(comm); },
      [&] { (void)worker.start_dispatch(comm); },
      [&] { (void)comm.combine(worker.handle, {}); },
      [&] { (void)comm.wait(worker.handle); },
      [&] { (void)comm.poll(worker.handle); },
      [&] { (void)comm.step(); },
      [&] { (void)comm.input(1, 1, DType::bf16, x); },
      [&] { comm.release(worker.handle); },
  };
  int refused = 0;
  for (const auto& call : calls) {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::misuse) ++refused;
    }
  }
  comm.close();  // does nothing there
  return refused == static_cast<int>(calls.size()) ? refused : -1;
}

class Rank {
 public:
  Rank(const Scene& scene, int rank, const SharedArray<Report>& reports, int& stop)
      : scene_(scene), rank_(rank), report_(reports[rank]), stop_(stop) {}

  int live() {
    const Holdings before = holdings();
    const int ending = use();
    const Holdings after = holdings();
    if (before == after) return ending;
    fmt::print(stderr, "{}: {}, rank {}: {} descriptors and {} mappings, after {} and {}\n",
               scene_.job, scene_.name(), rank_, before.descriptors, before.memory_files,
               after.descriptors, after.memory_files);
    return kLeak;
  }

 private:
  int use() {
    Bootstrap bootstrap{.rank = rank_, .size = scene_.problem.num_ranks(), .job = scene_.job};
    bootstrap.timeout = kTimeout;
    try {
      Communicator comm = Communicator::create(bootstrap, scene_.options);
      report_.created = true;
      const int ending = run(comm);
      return reap_child() ? ending : kUnexpected;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::setup) return kSetup;
      fmt::print(stderr, "{}: rank {}: {}\n", scene_.job, rank_, error.what());
      return kUnexpected;
    }
  }

  int run(Communicator& comm) {
    Worker worker(scene_.problem, rank_, scene_.dispatch);
    const Clock::time_point mine = Clock::now() + std::chrono::microseconds(scene_.delay_us);
    for (int round = 0; round <= stop_.load(); ++round) {
      if (rank_ == scene_.victim && Clock::now() > mine) go(worker, comm);
      if (!accept(dispatch(worker, comm), round)) return kUnexpected;
      if (!same(worker.received_difference(), round)) return kWrong;
      if (!accept(go_on(comm, worker, worker.combine(comm)), round)) return kUnexpected;
      if (!same(worker.out_difference(scene_.survives() ? 0 : scene_.victims), round)) {
        return kWrong;
      }
      report_.rounds = round + 1;
    }
    return kGood;
  }

  Status dispatch(Worker& worker, Communicator& comm) {
    if (fork_next_) {
      const Status status = worker.start_dispatch_when_ready(comm);
      fork_child(worker, comm);
      if (!status.ok()) return status;
      return go_on(comm, worker, comm.wait(worker.handle));
    }
    for (;;) {
      const Status status = go_on(comm, worker, worker.dispatch(comm));
      if (status.code != Code::timeout) return status;
    }
  }

  // Waits on after timeouts where they are to be expected. One for a slot that peers have not given
  // back is left to the caller: nothing has started.
  Status go_on(Communicator& comm, Worker& worker, Status status) {
    while (status.code == Code::timeout && scene_.mishap == Mishap::long_stop) {
      ++report_.timeouts;
      if (status.kind == OpKind::dispatch && !worker.handle.holds_lease()) return status;
      status = comm.wait(worker.handle);
    }
    return status;
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
    if (scene_.mishap != Mishap::fork_and_call || child_ != 0) return;
    fork_next_ = scene_.pending;
    if (!scene_.pending) fork_child(worker, comm);
  }

  void fork_child(Worker& worker, Communicator& comm) {
    fork_next_ = false;
    child_ = fork();
    if (child_ != 0) {
      let_go(report_.rounds);
      return;
    }
    const int refused = calls_refused(comm, worker);
    report_.refusals = refused;
    _exit(refused > 0 ? kGood : kUnexpected);
  }

  bool reap_child() {
    if (child_ == 0) return true;
    int status = -1;
    waitpid(child_, &status, 0);
    if (status == 0) return true;
    fmt::print(stderr, "{}: {}, rank {}: the child ended with {}\n", scene_.job, scene_.name(),
               rank_, status);
    return false;
  }

  // All agree on the last round.
  void let_go(int round) {
    int latest = stop_.load();
    while (latest > round + kRoundsAfter &&
           !stop_.compare_exchange_weak(latest, round + kRoundsAfter)) {
    }
  }

  // ok, or the news of a victim's end.
  bool accept(const Status& status, int round) {
    if (status.ok()) return true;
    const bool loss = status.code == Code::peer_lost && !scene_.survives() && status.missing != 0 &&
                      (status.missing & ~scene_.victims) == 0 && (status.missing & heard_) == 0;
    if (!loss) {
      fmt::print(stderr, "{}: {}, rank {}, round {}: {}\n", scene_.job, scene_.name(), rank_, round,
                 status.message());
      return false;
    }
    heard_ |= status.missing;
    if (report_.heard_ns == 0) report_.heard_ns = now_ns();
    let_go(round);
    return true;
  }

  bool same(const std::string& difference, int round) const {
    if (difference.empty()) return true;
    fmt::print(stderr, "{}: {}, rank {}, round {}: {}\n", scene_.job, scene_.name(), rank_, round,
               difference);
    return false;
  }

  const Scene& scene_;
  int rank_;
  Report& report_;
  std::atomic_ref<int> stop_;
  std::uint64_t heard_ = 0;  // bit r: rank r's loss was told
  pid_t child_ = 0;
  bool fork_next_ = false;
};

struct Tally {
  int runs = 0, setups = 0, hangs = 0, wrong = 0, unexpected = 0, leaks = 0;
  int timeouts = 0, refusals = 0;
  std::vector<double> notice_ms;
};

// Lets the ranks go on for some rounds after a stop, all the same number.
void end_after(const SharedArray<Report>& reports, int& stop) {
  int most = 0;
  for (std::size_t r = 0; r < reports.size(); ++r) most = std::max(most, reports[r].rounds.load());
  std::atomic_ref<int>(stop).store(most + 200);
}

void happen(const Scene& scene, const std::vector<pid_t>& ranks, const SharedArray<Report>& reports,
            int& stop) {
  const pid_t victim = ranks[static_cast<std::size_t>(scene.victim)];
  if (scene.mishap == Mishap::kill) kill(victim, SIGKILL);
  if (scene.mishap == Mishap::two) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (scene.is_victim(static_cast<int>(r))) kill(ranks[r], SIGKILL);
    }
  }
  if (scene.mishap == Mishap::stop || scene.mishap == Mishap::long_stop) {
    kill(victim, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::microseconds(scene.stopped_us));
    kill(victim, SIGCONT);
    end_after(reports, stop);
  }
}

void count(const Scene& scene, const std::vector<int>& statuses, const SharedArray<Report>& reports,
           std::int64_t begin, Tally& tally) {
  bool setup = false;
  for (int rank = 0; rank < scene.problem.num_ranks(); ++rank) {
    const int status = statuses[static_cast<std::size_t>(rank)];
    if (scene.is_victim(rank) && !scene.survives()) continue;
    setup = setup || status == kSetup;
    if (status == kWrong) ++tally.wrong;
    if (status == kLeak) ++tally.leaks;
    const bool known = status == kGood || status == kWrong || status == kSetup || status == kLeak;
    if (!known && status >= 0) ++tally.unexpected;
    tally.timeouts += reports[rank].timeouts;
    tally.refusals += reports[rank].refusals;
    const std::int64_t heard = reports[rank].heard_ns;
    if (heard != 0 && (scene.mishap == Mishap::kill || scene.mishap == Mishap::two)) {
      tally.notice_ms.push_back(static_cast<double>(heard - begin) * 1e-6);
    }
  }
  // A victim that was there is no reason to fail in set-up.
  if (setup && scene.survives()) ++tally.unexpected;
  if (setup) ++tally.setups;
}

int shared_files() {
  const std::filesystem::directory_iterator files("/dev/shm");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

void run_scene(const Scene& scene, Tally& tally) {
  const int size = scene.problem.num_ranks();
  const Holdings before = holdings();
  const int shared = shared_files();
  const SharedArray<Report> reports(static_cast<std::size_t>(size));
  const SharedArray<int> stop(1);
  stop[0] = INT_MAX - kRoundsAfter;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) _exit(Rank(scene, rank, reports, stop[0]).live());
    ranks.push_back(pid);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(scene.delay_us));
  const std::int64_t begin = now_ns();
  happen(scene, ranks, reports, stop[0]);
  ++tally.runs;
  const std::vector<int> statuses = await_children(ranks, kPatience);
  if (std::find(statuses.begin(), statuses.end(), -1) != statuses.end()) {
    ++tally.hangs;
    fmt::print(stderr, "{}: {}: a hang\n", scene.job, scene.name());
  }
  count(scene, statuses, reports, begin, tally);
  if (holdings() == before && shared_files() <= shared) return;
  ++tally.leaks;
  fmt::print(stderr, "{}: {}: something is left behind\n", scene.job, scene.name());
}

std::string quantile(std::vector<double> values, double q) {
  if (values.empty()) return "-";
  std::sort(values.begin(), values.end());
  return fmt::format("{:.1f}",
                     values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))]);
}

int report(const std::vector<Tally>& tallies) {
  fmt::print(
      "| mishap | runs | before set-up was complete | hangs | wrong bytes | wrong answers | left "
      "behind | noticed after ms, p50 / p99 |\n|---|---|---|---|---|---|---|---|\n");
  int bad = 0;
  int timeouts = 0;
  int refusals = 0;
  for (std::size_t i = 0; i < tallies.size(); ++i) {
    const Tally& t = tallies[i];
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} / {} |\n", kNames[i], t.runs, t.setups,
               t.hangs, t.wrong, t.unexpected, t.leaks, quantile(t.notice_ms, 0.5),
               quantile(t.notice_ms, 0.99));
    bad += t.hangs + t.wrong + t.unexpected + t.leaks;
    timeouts += t.timeouts;
    refusals += t.refusals;
  }
  fmt::print(
      "\nCalls that timed out and were gone on with: {}. Calls of forked children, all refused: "
      "{}.\n",
      timeouts, refusals);
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
  std::vector<Tally> tallies(kMishaps.size());
  for (int i = 0; i < kills; ++i) {
    const Scene scene = make_scene(seed + static_cast<std::uint64_t>(i));
    run_scene(scene, tallies[static_cast<std::size_t>(scene.mishap)]);
  }
  return report(tallies);
}
