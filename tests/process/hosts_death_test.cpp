// Ranks of several hosts when one dies, leaves or stands still, and when they cannot even meet.
// Hosts are 0 1 2 | 3 4 | 5 (host_of_rank), all on loopback.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/errors.hpp"
#include "support/fabric_groups.hpp"
#include "support/random.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kKilled = 128 + SIGKILL;
constexpr int kMaxRounds = 100'000;
constexpr int kRoundsAfter = 8;
// From a death to its news. Half a second would do on a machine with nothing else to do.
constexpr std::int64_t kMostNews = 1'000'000;  // us

Problem spread(Problem problem) {
  for (int r = 0; r < problem.num_ranks(); ++r) problem.host_of.push_back(host_of_rank(r));
  return problem;
}

std::uint64_t host_mask(int rank, int ranks) {
  std::uint64_t mask = 0;
  for (int r = 0; r < ranks; ++r) {
    if (host_of_rank(r) == host_of_rank(rank)) mask |= std::uint64_t{1} << r;
  }
  return mask;
}

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             steady_clock::now().time_since_epoch())
      .count();
}

class HostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_ucx()) GTEST_SKIP() << "there is no UCX";
  }
};

// --- one dies ---

struct Scene {
  Problem problem;
  CommunicatorOptions options;
  DispatchOptions dispatch;
  int victim = 0;
  int delay_us = 0;
};

Scene make_scene(std::uint64_t seed, Layout layout, Path path, int victim) {
  Random random(seed, 71, static_cast<std::uint64_t>(victim));
  Scene scene;
  const int ranks = std::max(victim + 1, random.between(4, 6));
  scene.problem = spread(make_problem({.ranks = ranks,
                                       .experts_per_rank = random.between(1, 2),
                                       .tokens = random.between(1, 24),
                                       .hidden = random.between(1, 400),
                                       .topk = random.between(1, 4),
                                       .layout = layout,
                                       .seed = seed}));
  scene.options = options_for(scene.problem);
  scene.options.slots = random.between(1, 3);
  scene.options.timeout = std::chrono::seconds(20);
  scene.dispatch.path = path;
  scene.victim = victim;
  scene.delay_us = random.below(20'000);
  return scene;
}

struct Shared {
  std::int64_t killed_at = 0;  // us
  int stop = INT_MAX;
};
struct Report {
  int losses = 0;
  int rounds = 0;
  std::int64_t heard_at = 0;
};

class Survivor {
 public:
  Survivor(const Scene& scene, Report& report, Shared& shared)
      : scene_(scene), report_(report), shared_(shared), stop_(shared.stop) {}

  void run(Worker& worker, Communicator& comm) {
    const int ranks = scene_.problem.num_ranks();
    for (int round = 0; round < kMaxRounds && round <= stop_.load(); ++round) {
      // Until it is known whom to go round, all of a host may be out of reach with its gateway.
      // The last rounds are relayed among those who are left.
      const std::uint64_t lost =
          round + 1 >= stop_.load() - kRoundsAfter / 2 && stop_ != INT_MAX
              ? std::uint64_t{1} << scene_.victim
              : host_mask(scene_.victim, ranks) | host_mask(worker_rank(comm), ranks);
      accept(worker.dispatch(comm), round);
      ASSERT_EQ(worker.received_difference(), "") << "round " << round;
      accept(worker.combine(comm), round);
      ASSERT_EQ(worker.out_difference(lost), "") << "round " << round;
      report_.rounds = round + 1;
      if (testing::Test::HasFailure()) break;
    }
  }

 private:
  static int worker_rank(const Communicator& comm) { return comm.rank(); }

  void accept(const Status& status, int round) {
    if (status.ok()) return;
    ASSERT_EQ(status.code, Code::peer_lost) << status.message();
    const std::uint64_t victim = std::uint64_t{1} << scene_.victim;
    // Besides it only those whose rows it should have passed on.
    EXPECT_TRUE((status.missing & victim) != 0 || report_.losses > 0 ||
                scene_.dispatch.path == Path::relay)
        << status.message();
    if ((status.missing & victim) == 0) return;
    if (report_.heard_at == 0) report_.heard_at = now_us();
    ++report_.losses;
    int latest = stop_.load();
    while (latest > round + kRoundsAfter &&
           !stop_.compare_exchange_weak(latest, round + kRoundsAfter)) {
    }
  }

  const Scene& scene_;
  Report& report_;
  Shared& shared_;
  std::atomic_ref<int> stop_;
};

void kill_one(const Scene& scene) {
  const int ranks = scene.problem.num_ranks();
  const SharedArray<Report> reports(static_cast<std::size_t>(ranks));
  const SharedArray<Shared> shared(1);
  shared[0].stop = INT_MAX;
  const Gate created(ranks);
  const std::vector<int> statuses =
      rank_statuses(RankKind::hosts, ranks, [&](const Bootstrap& bootstrap) {
        Communicator comm = Communicator::create(bootstrap, scene.options);
        Worker worker(scene.problem, bootstrap.rank, scene.dispatch);
        created.arrive_and_wait();
        if (bootstrap.rank == scene.victim) {
          std::thread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(scene.delay_us));
            shared[0].killed_at = now_us();
            kill(getpid(), SIGKILL);
          }).detach();
          for (;;) {
            (void)worker.dispatch(comm);
            (void)worker.combine(comm);
          }
        }
        Survivor(scene, reports[bootstrap.rank], shared[0]).run(worker, comm);
      });
  int rounds = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool victim = rank == scene.victim;
    EXPECT_EQ(statuses[static_cast<std::size_t>(rank)], victim ? kKilled : 0) << "rank " << rank;
    if (victim) continue;
    const Report& report = reports[rank];
    EXPECT_EQ(report.losses, 1) << "rank " << rank;
    EXPECT_LT(report.heard_at - shared[0].killed_at, kMostNews) << "rank " << rank;
    if (rounds == 0) rounds = report.rounds;
    EXPECT_EQ(report.rounds, rounds) << "rank " << rank;
  }
}

struct Way {
  Layout layout;
  Path path;
};
constexpr Way kWays[] = {{Layout::rank_major, Path::push},
                         {Layout::rank_major, Path::relay},
                         {Layout::expert_major, Path::push},
                         {Layout::expert_major, Path::relay}};

class HostsDeathTest : public HostsTest, public testing::WithParamInterface<Way> {};

// Every rank is a gateway of some other, too.
TEST_P(HostsDeathTest, SurvivorsGoOn) {
  const Way way = GetParam();
  for (int i = 0; i < 12 && !HasFailure(); ++i) {
    SCOPED_TRACE("scene " + std::to_string(i));
    kill_one(make_scene(static_cast<std::uint64_t>(i), way.layout, way.path, i % 6));
  }
}

struct WayName {
  template <class Info>
  std::string operator()(const Info& instance) const {
    return std::string(name(instance.param.layout)) + "_" + name(instance.param.path);
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, HostsDeathTest, testing::ValuesIn(kWays), WayName());

// --- one leaves ---

TEST_F(HostsTest, OneLeavesAndTheOthersGoOn) {
  const Problem problem = spread(make_problem({.ranks = 5}));
  for (const Path path : {Path::push, Path::relay}) {
    for (const int leaver : {0, 3}) {
      SCOPED_TRACE(std::string(name(path)) + ", rank " + std::to_string(leaver) + " leaves");
      run_ranks(RankKind::hosts, 5, [&](const Bootstrap& bootstrap) {
        Communicator comm = Communicator::create(bootstrap, options_for(problem));
        Worker worker(problem, bootstrap.rank, {.path = path});
        for (int round = 0; round < 3; ++round) ASSERT_EQ(worker.round(comm), "");
        if (bootstrap.rank == leaver) return;
        int losses = 0;
        for (int round = 0; round < 6; ++round) {
          for (const bool dispatches : {true, false}) {
            const Status status = dispatches ? worker.dispatch(comm) : worker.combine(comm);
            losses += status.code == Code::peer_lost ? 1 : 0;
            ASSERT_TRUE(status.ok() || status.code == Code::peer_lost) << status.message();
            if (dispatches) {
              ASSERT_EQ(worker.received_difference(), "");
            }
            if (status.ok()) continue;
            EXPECT_NE(status.missing >> leaver & 1, 0U) << status.message();
          }
          ASSERT_EQ(worker.out_difference(round < 3 ? 0b11111U : 1U << leaver), "");
        }
        EXPECT_GE(losses, 1);
      });
    }
  }
}

// --- one stands still ---

TEST_F(HostsTest, AStoppedRankIsNamedAndGoneOnFrom) {
  constexpr int kVictim = 3;
  const SharedArray<std::atomic<int>> pid(1);
  const SharedArray<std::atomic<int>> told(1);
  for (const Way& way : kWays) {
    const Problem problem =
        spread(make_problem({.ranks = 5, .experts_per_rank = 1, .topk = 5, .layout = way.layout}));
    told[0] = pid[0] = 0;
    run_ranks(RankKind::hosts, 5, [&](const Bootstrap& bootstrap) {
      CommunicatorOptions options = options_for(problem);
      options.timeout = milliseconds(300);
      Communicator comm = Communicator::create(bootstrap, options);
      Worker worker(problem, bootstrap.rank, {.path = way.path});
      const auto finish = [&](Status status) {
        for (int calls = 0; status.code == Code::timeout && calls < 100; ++calls) {
          if (bootstrap.rank != kVictim && pid[0] != 0) {
            EXPECT_NE(status.missing >> kVictim & 1, 0U) << status.message();
            ++told[0];
            if (bootstrap.rank == 0 && told[0] >= 2) kill(pid[0], SIGCONT);
          }
          status = worker.handle.holds_lease() || calls > 0 ? comm.wait(worker.handle)
                                                            : worker.dispatch(comm);
        }
        return status;
      };
      for (int round = 0; round < 4; ++round) {
        if (round == 1 && bootstrap.rank == kVictim) {
          pid[0] = getpid();
          raise(SIGSTOP);
          pid[0] = 0;
        }
        Status status = finish(worker.dispatch(comm));
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_EQ(worker.received_difference(), "");
        status = worker.combine(comm);
        while (status.code == Code::timeout) status = comm.wait(worker.handle);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_EQ(worker.out_difference(), "");
      }
    });
    EXPECT_GE(told[0], 2) << name(way.layout) << ", " << name(way.path);
  }
}

// Repeated routing keeps its gateways: what went through the dead one stays away, and is marked so,
// until a dispatch that plans anew.
TEST_F(HostsTest, RepeatedRoutingMarksWhatWentThroughTheDead) {
  constexpr int kVictim = 3;
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    const Problem problem = spread(make_problem({.ranks = 5, .layout = layout}));
    const std::vector<int> statuses =
        rank_statuses(RankKind::hosts, 5, [&](const Bootstrap& bootstrap) {
          Communicator comm = Communicator::create(bootstrap, options_for(problem));
          Worker worker(problem, bootstrap.rank, {.path = Path::relay});
          ASSERT_EQ(worker.round(comm), "");
          if (bootstrap.rank == kVictim) kill(getpid(), SIGKILL);
          for (int round = 0; round < 4; ++round) {
            Status status = comm.dispatch(worker.x(), worker.handle, worker.handle);
            ASSERT_TRUE(status.ok() || status.code == Code::peer_lost) << status.message();
            ASSERT_EQ(worker.received_difference(), "");
            status = worker.combine(comm);
            ASSERT_TRUE(status.ok() || status.code == Code::peer_lost) << status.message();
            ASSERT_EQ(worker.out_difference(0b11111), "");
          }
          for (int round = 0; round < 3; ++round) {
            (void)worker.dispatch(comm);
            ASSERT_EQ(worker.received_difference(), "");
            (void)worker.combine(comm);
            ASSERT_EQ(worker.out_difference(1U << kVictim), "");
          }
        });
    for (int rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(statuses[static_cast<std::size_t>(rank)], rank == kVictim ? kKilled : 0);
    }
  }
}

// --- others meet anew ---

std::ptrdiff_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

TEST_F(HostsTest, SurvivorsMeetAnewAndLeaveNothingBehind) {
  constexpr int kVictim = 3;
  const Problem problem = spread(make_problem({.ranks = 5}));
  const std::vector<int> statuses =
      rank_statuses(RankKind::hosts, 5, [&](const Bootstrap& bootstrap) {
        Communicator comm = Communicator::create(bootstrap, options_for(problem));
        Worker worker(problem, bootstrap.rank, {.path = Path::relay});
        ASSERT_EQ(worker.round(comm), "");
        if (bootstrap.rank == kVictim) kill(getpid(), SIGKILL);
        (void)worker.dispatch(comm);
        (void)worker.combine(comm);
        std::ptrdiff_t files = 0;
        for (int i = 0; i < 12; ++i) {
          comm.release(worker.handle);
          comm.update_membership({0, 1, 2, 4});
          for (int round = 0; round < 2; ++round) {
            ASSERT_TRUE(worker.dispatch(comm).ok());
            ASSERT_EQ(worker.received_difference(), "");
            ASSERT_TRUE(worker.combine(comm).ok());
            ASSERT_EQ(worker.out_difference(1U << kVictim), "");
          }
          if (i == 3) files = open_files();
        }
        EXPECT_LE(open_files(), files);
      });
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(statuses[static_cast<std::size_t>(rank)], rank == kVictim ? kKilled : 0);
  }
}

// --- set-up ---

// All ranks say one of `parts`, in time.
void expect_no_meeting(int ranks, const Parts& parts, const std::function<void(Bootstrap&)>& differ,
                       const std::function<void(int, CommunicatorOptions&)>& options_differ = {},
                       int absent = -1) {
  constexpr milliseconds kTimeout{1500};
  const Problem problem = make_problem({.ranks = ranks});
  run_ranks(RankKind::hosts, ranks, [&](Bootstrap bootstrap) {
    if (bootstrap.rank == absent) return;
    bootstrap.timeout = kTimeout;
    CommunicatorOptions options = options_for(problem);
    if (options_differ) options_differ(bootstrap.rank, options);
    differ(bootstrap);
    const auto start = steady_clock::now();
    expect_error(ErrorCode::setup, {}, [&] {
      try {
        (void)Communicator::create(bootstrap, options);
      } catch (const Error& error) {
        bool found = false;
        for (const std::string& part : parts) {
          found = found || std::string(error.what()).find(part) != std::string::npos;
        }
        EXPECT_TRUE(found) << "rank " << bootstrap.rank << ": " << error.what();
        throw;
      }
    });
    EXPECT_LT(steady_clock::now() - start, kTimeout + milliseconds(2000))
        << "rank " << bootstrap.rank;
  });
}

TEST_F(HostsTest, ARankThatNeverComesIsNamed) {
  for (const int absent : {4, 1}) {
    expect_no_meeting(
        5, {"rank " + std::to_string(absent), "ranks " + std::to_string(absent)}, [](Bootstrap&) {},
        {}, absent);
  }
  expect_no_meeting(
      5, {"nobody", "rank 0"}, [](Bootstrap&) {}, {}, 0);
}

TEST_F(HostsTest, ANetworkThatIsNotThereIsToldToAll) {
  for (const int rank : {0, 3}) {
    expect_no_meeting(5, {"UCX"}, [&](const Bootstrap& bootstrap) {
      if (bootstrap.rank == rank) setenv("UCX_NET_DEVICES", "nothing0", 1);
    });
  }
}

TEST_F(HostsTest, OptionsThatDifferAreToldToAll) {
  expect_no_meeting(
      5, {"max_tokens differs"}, [](Bootstrap&) {},
      [](int rank, CommunicatorOptions& options) { options.max_tokens += rank == 3 ? 1 : 0; });
}

TEST_F(HostsTest, AWrongJobKeyIsRefused) {
  expect_no_meeting(3, {"key", "rank 2"}, [](Bootstrap& bootstrap) {
    bootstrap.key = bootstrap.rank == 2 ? std::string(32, 'b') : std::string(32, 'a');
  });
}

// --- misuse ---

TEST_F(HostsTest, WhatNeedsOneHostIsRefusedByName) {
  const Problem problem = spread(make_problem({.ranks = 4}));
  run_ranks(RankKind::hosts, 4, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank, {.path = Path::relay});
    const auto refuses = [&](const Parts& parts, const DispatchOptions& options) {
      expect_error(ErrorCode::invalid_argument, parts, [&] {
        (void)comm.dispatch(worker.x(), worker.routing(), options, worker.handle);
      });
    };
    refuses({"path read", "one host"}, {.path = Path::read});
    refuses({"mapped_view"}, {.path = Path::allgather, .mapped_view = true});
    refuses({"by_expert"}, {.layout = Layout::expert_major, .path = Path::pull, .by_expert = true});
    refuses({"topk1"}, {.path = Path::relay, .topk1 = true});
    refuses({"reduction"}, {.path = Path::relay, .reduction = Reduction::exact});
    const int remote = host_of_rank(bootstrap.rank) == 0 ? 3 : 0;
    expect_error(ErrorCode::misuse, {"mask", "rank " + std::to_string(remote), "host"},
                 [&] { comm.mask(remote); });
    EXPECT_EQ(worker.round(comm), "");
  });
}

TEST_F(HostsTest, ProtocolsOfOneHostAreRefusedByName) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(RankKind::hosts, 3, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.push = true;
    options.protocol = Protocol::fence;
    expect_error(ErrorCode::invalid_argument, {"protocol"},
                 [&] { (void)Communicator::create(bootstrap, options); });
  });
}

TEST(OneHostTest, SumsOfHostsNeedAnAddress) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    const auto refuses = [&](const Parts& parts, const DispatchOptions& options) {
      expect_error(ErrorCode::invalid_argument, parts, [&] {
        (void)comm.dispatch(worker.x(), worker.routing(), options, worker.handle);
      });
    };
    refuses({"path relay", "Bootstrap::address"}, {.path = Path::relay});
    refuses({"reduction per_host", "several hosts"}, {.reduction = Reduction::per_host});
    EXPECT_EQ(worker.round(comm), "");
  });
}

// --- forks ---

// A child that ends as processes do destroys what it has of the communicator.
TEST_F(HostsTest, AForkedChildDoesNotDisturbItsParent) {
  const Problem problem = spread(make_problem({.ranks = 4}));
  run_ranks(RankKind::hosts, 4, [&](const Bootstrap& bootstrap) {
    auto comm =
        std::make_unique<Communicator>(Communicator::create(bootstrap, options_for(problem)));
    Worker worker(problem, bootstrap.rank, {.path = Path::relay});
    ASSERT_EQ(worker.round(*comm), "");
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      comm.reset();
      _exit(0);
    }
    EXPECT_EQ(await_children({child}, std::chrono::seconds(15)), std::vector<int>{0});
    for (int round = 0; round < 20; ++round) ASSERT_EQ(worker.round(*comm), "");
  });
}

}  // namespace
}  // namespace ubep::test
