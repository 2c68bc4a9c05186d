// A rank is killed while the others dispatch and combine: each survivor hears of it once, what is
// marked valid is right, and the survivors go on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <thread>

#include "support/random.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

constexpr int kMaxRounds = 100'000;
constexpr int kRoundsAfter = 6;
constexpr int kKilled = 128 + SIGKILL;

// What survivors tell the test. Rounds are kept modulo the size.
struct SurvivorReport {
  int losses = 0;
  int rounds = 0;
  std::uint64_t lost = 0;          // union of what was reported
  std::uint64_t sources[64] = {};  // of the latest rounds
};

struct Scene {
  Problem problem;
  CommunicatorOptions options;
  DispatchOptions dispatch;
  std::uint64_t victims = 0;
  std::vector<int> delay_us;  // [ranks] of the victims
};

Scene make_scene(std::uint64_t seed, int victims) {
  Random random(seed);
  Scene scene;
  const int ranks = random.between(victims + 1, 5);
  scene.problem =
      make_problem({.ranks = ranks,
                    .experts_per_rank = random.between(1, 3),
                    .tokens = random.between(1, 12),
                    .hidden = random.between(1, 200),
                    .topk = random.between(1, 3),
                    .layout = random.one_in(2) ? Layout::rank_major : Layout::expert_major,
                    .seed = seed});
  scene.options = options_for(scene.problem);
  scene.options.slots = random.between(1, 3);
  scene.options.store = random.one_in(2) ? Store::near : Store::far;
  const bool rank_major = scene.problem.layout == Layout::rank_major;
  scene.dispatch.path =
      rank_major ? random.pick<Path>({Path::read, Path::pull, Path::push, Path::allgather})
                 : random.pick<Path>({Path::pull, Path::push, Path::push, Path::bsp});
  scene.problem.every_token = scene.dispatch.path == Path::allgather;
  if (rank_major && random.one_in(3)) {
    scene.dispatch.weighting = Weighting::owner;
  } else {
    const bool can = scene.dispatch.path == Path::pull || scene.dispatch.path == Path::push;
    scene.dispatch.in_place = can && random.one_in(3);
  }
  while (__builtin_popcountll(scene.victims) < victims) {
    scene.victims |= std::uint64_t{1} << random.below(ranks);
  }
  for (int rank = 0; rank < ranks; ++rank) scene.delay_us.push_back(random.below(15'000));
  return scene;
}

// Kills this process from a thread of its own, wherever the main thread is then.
[[noreturn]] void live_until_killed(const Scene& scene, Worker& worker, Communicator& comm) {
  const int rank = comm.rank();
  std::thread([&scene, rank] {
    const int delay = scene.delay_us[static_cast<std::size_t>(rank)];
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
    kill(getpid(), SIGKILL);
  }).detach();
  for (;;) {
    (void)worker.dispatch(comm);  // another victim may go first; nothing is checked here
    (void)worker.combine(comm);
  }
}

class Survivor {
 public:
  Survivor(const Scene& scene, SurvivorReport& report, int& stop)
      : scene_(scene), report_(report), stop_(stop) {}

  void run(Worker& worker, Communicator& comm) {
    for (int round = 0; round < kMaxRounds && round <= stop_.load(); ++round) {
      accept(worker.dispatch(comm), round);
      ASSERT_EQ(worker.received_difference(), "") << "round " << round;
      report_.sources[round % 64] = worker.handle.received().sources;
      accept(worker.combine(comm), round);
      ASSERT_EQ(worker.out_difference(scene_.victims), "") << "round " << round;
      report_.rounds = round + 1;
      if (testing::Test::HasFailure()) break;
    }
  }

 private:
  // ok, or the news of a victim's death.
  void accept(const Status& status, int round) {
    if (status.ok()) return;
    ASSERT_EQ(status.code, Code::peer_lost) << status.message();
    ASSERT_NE(status.missing, 0U) << status.message();
    EXPECT_EQ(status.missing & ~scene_.victims, 0U) << status.message();
    EXPECT_EQ(status.missing & report_.lost, 0U) << "reported twice: " << status.message();
    ASSERT_GE(status.peer, 0) << status.message();
    EXPECT_NE(status.missing >> status.peer & 1, 0U) << status.message();
    EXPECT_STREQ(status.what, "dead") << status.message();
    ++report_.losses;
    report_.lost |= status.missing;
    if (report_.lost != scene_.victims) return;
    int latest = stop_.load();
    while (latest > round + kRoundsAfter &&
           !stop_.compare_exchange_weak(latest, round + kRoundsAfter)) {
    }
  }

  const Scene& scene_;
  SurvivorReport& report_;
  std::atomic_ref<int> stop_;
};

void check_reports(const Scene& scene, const SharedArray<SurvivorReport>& reports) {
  const SurvivorReport* first = nullptr;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if ((scene.victims >> rank & 1) != 0) continue;
    EXPECT_EQ(reports[rank].lost, scene.victims) << "rank " << rank;
    EXPECT_LE(reports[rank].losses, __builtin_popcountll(scene.victims)) << "rank " << rank;
    if (first == nullptr) {
      first = &reports[rank];
      continue;
    }
    EXPECT_EQ(reports[rank].rounds, first->rounds) << "rank " << rank;
    // Who took part in which round is the same for all survivors; only rows that were pushed may
    // have reached some of them.
    if (scene.dispatch.path == Path::push || scene.dispatch.path == Path::bsp) continue;
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(reports[rank].sources[i], first->sources[i]) << "rank " << rank << ", round " << i;
    }
  }
}

void kill_some(std::uint64_t seed, int victims) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Scene scene = make_scene(seed, victims);
  const int ranks = scene.problem.num_ranks();
  const SharedArray<SurvivorReport> reports(static_cast<std::size_t>(ranks));
  const SharedArray<int> stop(1);
  stop[0] = INT_MAX;
  const Gate created(ranks);
  const std::vector<int> statuses =
      rank_statuses(RankKind::processes, ranks, [&](const Bootstrap& bootstrap) {
        Communicator comm = Communicator::create(bootstrap, scene.options);
        Worker worker(scene.problem, bootstrap.rank, scene.dispatch);
        created.arrive_and_wait();
        if ((scene.victims >> bootstrap.rank & 1) != 0) live_until_killed(scene, worker, comm);
        Survivor(scene, reports[bootstrap.rank], stop[0]).run(worker, comm);
      });
  for (int rank = 0; rank < ranks; ++rank) {
    const bool victim = (scene.victims >> rank & 1) != 0;
    EXPECT_EQ(statuses[static_cast<std::size_t>(rank)], victim ? kKilled : 0) << "rank " << rank;
  }
  check_reports(scene, reports);
}

class DeathTest : public testing::TestWithParam<int> {};

TEST_P(DeathTest, SurvivorsOfOneGoOn) {
  for (int i = 0; i < 6 && !HasFailure(); ++i) {
    kill_some(static_cast<std::uint64_t>(GetParam() * 100 + i), 1);
  }
}

TEST_P(DeathTest, SurvivorsOfTwoGoOn) {
  for (int i = 0; i < 3 && !HasFailure(); ++i) {
    kill_some(static_cast<std::uint64_t>(GetParam() * 100 + 50 + i), 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DeathTest, testing::Range(0, 6));

// A death in one of two overlapped dispatches is reported by one of them.
TEST(OverlappedDeathTest, OneOfTwoDispatchesReports) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker first(problem, bootstrap.rank);
    Worker second(problem, bootstrap.rank);
    EXPECT_EQ(first.round(comm), "");
    if (bootstrap.rank == 1) _exit(0);
    int losses = 0;
    ASSERT_TRUE(first.start_dispatch_when_ready(comm).ok());
    ASSERT_TRUE(second.start_dispatch_when_ready(comm).ok());
    for (Worker* worker : {&first, &second}) {
      const Status status = comm.wait(worker->handle);
      losses += status.code == Code::peer_lost;
      EXPECT_TRUE(status.ok() || status.code == Code::peer_lost) << status.message();
      EXPECT_EQ(worker->received_difference(), "");
    }
    for (Worker* worker : {&first, &second}) {
      const Status status = worker->combine(comm);
      losses += status.code == Code::peer_lost;
      EXPECT_TRUE(status.ok() || status.code == Code::peer_lost) << status.message();
      EXPECT_EQ(worker->out_difference(0b010), "");
    }
    EXPECT_EQ(losses, 1);
  });
}

// The token's whole fate: a rank dies before it dispatches, so its experts give nothing.
TEST(DeadOwnerTest, TokensOfTheDeadAreMarked) {
  const Problem problem = make_problem({.ranks = 2, .experts_per_rank = 1, .topk = 1});
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
    if (bootstrap.rank == 1) _exit(0);
    const Status status = worker.dispatch(comm);
    EXPECT_EQ(status.code, Code::peer_lost) << status.message();
    EXPECT_EQ(worker.handle.received().sources, 0b01U);
    EXPECT_EQ(worker.received_difference(), "");
    EXPECT_TRUE(worker.combine(comm).ok());
    EXPECT_EQ(worker.out_difference(0b10), "");
    const RankInput& input = problem.ranks[0];
    for (std::size_t token = 0; token < worker.handle.valid_tokens().size(); ++token) {
      EXPECT_EQ(worker.handle.valid_tokens()[token], input.topk_idx[token] == 0 ? 1 : 0);
    }
  });
}

// Routing from before the death is used again: the dead rank's rows are gone from it.
TEST(DeadOwnerTest, CachedRoutingLosesTheDeadsRows) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    const Problem problem = make_problem({.ranks = 3, .layout = layout});
    run_ranks(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      Worker worker(problem, bootstrap.rank);
      EXPECT_EQ(worker.round(comm), "");
      if (bootstrap.rank == 1) _exit(0);
      int losses = 0;
      for (int round = 0; round < 5; ++round) {
        const Status status = comm.dispatch(worker.x(), worker.handle, worker.handle);
        losses += status.code == Code::peer_lost;
        ASSERT_TRUE(status.ok() || status.code == Code::peer_lost) << status.message();
        ASSERT_EQ(worker.handle.received().sources, 0b101U);
        ASSERT_EQ(worker.received_difference(), "") << ubep::name(layout) << ", round " << round;
        const Status combined = worker.combine(comm);
        losses += combined.code == Code::peer_lost;
        ASSERT_EQ(worker.out_difference(0b010), "") << combined.message();
      }
      EXPECT_EQ(losses, 1);
    });
  }
}

// A process that was forked from the dead rank and lives on does not hide the death.
TEST(LivingForkTest, DoesNotHideTheDeath) {
  const Problem problem = make_problem({.ranks = 2});
  const SharedArray<pid_t> sleeper(1);
  const std::vector<int> statuses =
      rank_statuses(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
        Communicator comm = Communicator::create(bootstrap, options_for(problem));
        Worker worker(problem, bootstrap.rank);
        EXPECT_EQ(worker.round(comm), "");
        if (bootstrap.rank == 1) {
          sleeper[0] = fork();
          if (sleeper[0] == 0) {
            sleep(30);
            _exit(0);
          }
          kill(getpid(), SIGKILL);
        }
        const auto start = std::chrono::steady_clock::now();
        const Status status = worker.dispatch(comm);
        EXPECT_EQ(status.code, Code::peer_lost) << status.message();
        EXPECT_EQ(status.peer, 1);
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
      });
  if (sleeper[0] > 0) kill(sleeper[0], SIGKILL);
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[1], kKilled);
}

// Killed while the communicator is being created: a set-up error in time, or a lost peer.
TEST(DeathAtCreationTest, OthersDoNotHang) {
  const Problem problem = make_problem({.ranks = 3});
  for (int i = 0; i < 8; ++i) {
    SCOPED_TRACE(i);
    const int victim = i % 3;
    const std::vector<int> statuses =
        rank_statuses(RankKind::processes, 3, [&](Bootstrap bootstrap) {
          bootstrap.timeout = std::chrono::seconds(3);
          if (bootstrap.rank == victim) {
            std::thread([i] {
              std::this_thread::sleep_for(std::chrono::microseconds(300 * i));
              kill(getpid(), SIGKILL);
            }).detach();
          }
          const auto start = std::chrono::steady_clock::now();
          try {
            Communicator comm = Communicator::create(bootstrap, options_for(problem));
            Worker worker(problem, bootstrap.rank);
            while (bootstrap.rank == victim) std::this_thread::yield();
            const Status status = worker.dispatch(comm);
            EXPECT_EQ(status.code, Code::peer_lost) << status.message();
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::setup) << error.what();
          }
          EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
        });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(statuses[static_cast<std::size_t>(rank)], rank == victim ? kKilled : 0);
    }
  }
}

}  // namespace
}  // namespace ubep::test
