// Ranks that join, leave, die and come back, by a plan: a list of phases, each a list of the ranks
// that take part in it, e.g. [[0,1],[0,1,2,3],[0,1,-2,3],[0,3]]. A negative number: this rank is
// killed during the phase. (So rank 0 is never killed.)
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "support/random.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 4;
constexpr int kRoundsAfter = 3;  // after a death

using Plan = std::vector<std::vector<int>>;

Plan parse_plan(const std::string& text) {
  Plan plan;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' && ++depth == 2) plan.emplace_back();
    if (text[i] == ']') --depth;
    if (text[i] != '-' && std::isdigit(static_cast<unsigned char>(text[i])) == 0) continue;
    std::size_t used = 0;
    plan.back().push_back(std::stoi(text.substr(i), &used));
    i += used - 1;
  }
  return plan;
}

std::vector<int> members_of(const std::vector<int>& phase) {
  std::vector<int> members;
  for (int r : phase) members.push_back(std::abs(r));
  std::sort(members.begin(), members.end());
  return members;
}

bool takes_part(const std::vector<int>& phase, int rank) {
  return std::any_of(phase.begin(), phase.end(), [&](int r) { return std::abs(r) == rank; });
}

bool is_killed(const std::vector<int>& phase, int rank) {
  return std::find(phase.begin(), phase.end(), -rank) != phase.end() && rank != 0;
}

struct Scene {
  Plan plan;
  Problem problem;
  CommunicatorOptions options;
  DispatchOptions dispatch;
  std::string job;
};

// What all processes tell the test.
struct Report {
  int phases = 0;  // completed, by all ranks
  int losses = 0;
};

// One process of a rank: from the phase `first` on, while it takes part.
class Member {
 public:
  Member(const Scene& scene, int rank, std::size_t first, const SharedArray<Report>& report)
      : scene_(scene), rank_(rank), first_(first), report_(report) {}

  void live() {
    Bootstrap bootstrap{.rank = rank_, .size = scene_.problem.num_ranks(), .job = scene_.job};
    bootstrap.members = members_of(scene_.plan[first_]);
    Communicator comm = Communicator::create(bootstrap, scene_.options);
    Worker worker(scene_.problem, rank_, scene_.dispatch);
    for (std::size_t p = first_; p < scene_.plan.size(); ++p) {
      if (!takes_part(scene_.plan[p], rank_)) return comm.close();
      if (p > first_) comm.update_membership(members_of(scene_.plan[p]));
      EXPECT_EQ(comm.members(), members_of(scene_.plan[p]));
      run_phase(scene_.plan[p], worker, comm);
      if (testing::Test::HasFailure()) return;
      std::atomic_ref(report_[rank_].phases).fetch_add(1);
    }
  }

 private:
  void run_phase(const std::vector<int>& phase, Worker& worker, Communicator& comm) {
    absent_ = killed_ = 0;
    for (int r = 0; r < scene_.problem.num_ranks(); ++r) {
      if (!takes_part(phase, r)) absent_ |= std::uint64_t{1} << r;
      if (is_killed(phase, r)) killed_ |= std::uint64_t{1} << r;
    }
    heard_ = 0;
    const int rounds = kRounds + (killed_ == 0 ? 0 : kRoundsAfter);
    for (int round = 0; round < rounds; ++round) {
      if (is_killed(phase, rank_) && round == kRounds) {
        if (round % 2 == 0) (void)worker.start_dispatch(comm);
        kill(getpid(), SIGKILL);
      }
      accept(worker.dispatch(comm));
      ASSERT_EQ(worker.received_difference(), "") << "rank " << rank_ << ", round " << round;
      EXPECT_EQ(worker.handle.received().sources & absent_, 0U);
      accept(worker.combine(comm));
      ASSERT_EQ(worker.out_difference(absent_ | killed_), "")
          << "rank " << rank_ << ", round " << round;
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    EXPECT_EQ(heard_, killed_);
  }

  void accept(const Status& status) {
    if (status.ok()) return;
    ASSERT_EQ(status.code, Code::peer_lost) << status.message();
    EXPECT_EQ(status.missing & ~killed_, 0U) << status.message();
    heard_ |= status.missing;
    std::atomic_ref(report_[rank_].losses).fetch_add(1);
  }

  const Scene& scene_;
  int rank_;
  std::size_t first_;
  const SharedArray<Report>& report_;
  std::uint64_t absent_ = 0, killed_ = 0, heard_ = 0;
};

// Starts a process of each rank for its next phase, and again once it was killed or has left.
class Stage {
 public:
  Stage(const Scene& scene, const SharedArray<Report>& report) : scene_(scene), report_(report) {}

  void run() {
    for (int r = 0; r < scene_.problem.num_ranks(); ++r) start(r, 0);
    while (!ranks_.empty()) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, 0);
      const auto found = ranks_.find(pid);
      if (found == ranks_.end()) continue;
      const Process process = found->second;
      ranks_.erase(found);
      const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      EXPECT_TRUE(died || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
          << "rank " << process.rank << ": status " << status;
      start(process.rank, end_of(process, died));
    }
  }

 private:
  struct Process {
    int rank;
    std::size_t first;
  };

  // The first phase of which this process took no part in.
  std::size_t end_of(const Process& process, bool died) const {
    std::size_t p = process.first;
    while (p < scene_.plan.size() && takes_part(scene_.plan[p], process.rank)) {
      if (died && is_killed(scene_.plan[p], process.rank)) return p + 1;
      ++p;
    }
    EXPECT_FALSE(died) << "rank " << process.rank;
    return p;
  }

  void start(int rank, std::size_t from) {
    while (from < scene_.plan.size() && !takes_part(scene_.plan[from], rank)) ++from;
    if (from == scene_.plan.size()) return;
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(kRankSeconds);
      int status = 0;
      try {
        Member(scene_, rank, from, report_).live();
        if (testing::Test::HasFailure()) status = 1;
      } catch (const std::exception& error) {
        fprintf(stderr, "rank %d: %s\n", rank, error.what());
        status = 70;
      }
      std::fflush(nullptr);
      _exit(status);
    }
    ranks_[pid] = {rank, from};
  }

  const Scene& scene_;
  const SharedArray<Report>& report_;
  std::map<pid_t, Process> ranks_;
};

void run_plan(const Plan& plan, std::uint64_t seed) {
  int size = 1;
  for (const auto& phase : plan) {
    for (int r : phase) size = std::max(size, std::abs(r) + 1);
  }
  Random random(seed);
  Scene scene{.plan = plan, .problem = {}, .options = {}, .dispatch = {}, .job = {}};
  const Layout layout = random.pick<Layout>({Layout::rank_major, Layout::expert_major});
  scene.problem = make_problem({.ranks = size,
                                .tokens = random.between(1, 12),
                                .hidden = random.between(1, 100),
                                .topk = random.between(1, 3),
                                .layout = layout,
                                .seed = seed});
  scene.options = options_for(scene.problem);
  scene.options.slots = random.between(1, 3);
  scene.dispatch.layout = layout;
  scene.dispatch.path = random.pick<Path>({Path::pull, Path::push, Path::bsp});
  if (layout == Layout::rank_major && random.one_in(4)) {
    scene.dispatch.path = random.pick<Path>({Path::read, Path::allgather});
    scene.problem.every_token = scene.dispatch.path == Path::allgather;
  }
  scene.job = "membership-test-" + std::to_string(getpid()) + "-" + std::to_string(seed);
  const SharedArray<Report> report(static_cast<std::size_t>(size));
  Stage(scene, report).run();
  for (int r = 0; r < size; ++r) {
    int phases = 0;
    for (const auto& phase : plan) phases += takes_part(phase, r) && !is_killed(phase, r) ? 1 : 0;
    EXPECT_EQ(report[r].phases, phases) << "rank " << r;
  }
}

class MembershipTest : public testing::TestWithParam<const char*> {};

TEST_P(MembershipTest, FollowsThePlan) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_plan(parse_plan(GetParam()), seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, MembershipTest,
                         testing::Values("[[0,1],[0,1,2,3],[0,1,-2,3],[0,3]]",
                                         "[[0,1,2],[0,-1,2],[0,1,2]]",          // comes back
                                         "[[0],[0,1,2],[0]]",                   // alone
                                         "[[2,3],[0,1,2,3],[0,1]]",             // all are replaced
                                         "[[0,1,2,3],[0,-1,-2,3],[0,1,2,3,4]]"  // two at once
                                         ));

TEST(MembershipTest, RandomPlans) {
  for (std::uint64_t seed = 100; seed < 106; ++seed) {
    Random random(seed);
    Plan plan;
    const int size = random.between(2, 5);
    for (int p = 0; p < 4; ++p) {
      std::vector<int> phase;
      for (int r = 0; r < size; ++r) {
        if (random.one_in(4)) continue;
        phase.push_back(r != 0 && random.one_in(6) ? -r : r);
      }
      if (std::none_of(phase.begin(), phase.end(), [](int r) { return r >= 0; })) phase = {0, 1};
      plan.push_back(std::move(phase));
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_plan(plan, seed);
  }
}

// The call that fails leaves the communicator as it was.
TEST(MembershipTest, WhoDoesNotComeIsNamedAndNothingIsLost) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& two) {
    Bootstrap bootstrap = two;
    bootstrap.size = 3;
    bootstrap.members = {1, 0};
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.dispatch(comm).ok());
    ASSERT_TRUE(worker.combine(comm).ok());
    EXPECT_EQ(worker.out_difference(0b100), "");
  });
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& two) {
    Bootstrap bootstrap = two;
    bootstrap.size = 3;
    bootstrap.members = {0, 1};
    bootstrap.timeout = 1500ms;
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    try {
      comm.update_membership({0, 1, 2});
      ADD_FAILURE() << "rank 2 does not exist";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::setup);
      EXPECT_NE(std::string(error.what()).find("rank 2 did not arrive"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(comm.members(), (std::vector<int>{0, 1}));
    ASSERT_TRUE(worker.dispatch(comm).ok());
    ASSERT_TRUE(worker.combine(comm).ok());
    EXPECT_EQ(worker.out_difference(0b100), "");
  });
}

// One rank meets at once, the other is in its next operation: its timeout sends it to the meeting.
TEST(MembershipTest, WhoHearsLaterComesAfterItsTimeout) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    for (const int early : {0, 1}) {
      const Problem problem = make_problem({.ranks = 3, .layout = layout});
      const std::vector<int> statuses =
          rank_statuses(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
            CommunicatorOptions options = options_for(problem);
            options.timeout = 400ms;
            Communicator comm = Communicator::create(bootstrap, options);
            Worker worker(problem, bootstrap.rank, {.layout = layout});
            ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
            ASSERT_TRUE(comm.wait(worker.handle, std::chrono::steady_clock::now() + 20s).ok());
            ASSERT_TRUE(worker.start_combine(comm).ok());
            ASSERT_TRUE(comm.wait(worker.handle, std::chrono::steady_clock::now() + 20s).ok());
            if (bootstrap.rank == 2) kill(getpid(), SIGKILL);
            if (bootstrap.rank != early) {
              const Status status = worker.dispatch(comm);
              EXPECT_EQ(status.code, Code::timeout) << status.message();
              EXPECT_NE(status.missing >> early & 1, 0U) << status.message();
              comm.release(worker.handle);
            }
            comm.update_membership({0, 1});
            for (int round = 0; round < 3; ++round) {
              ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
              ASSERT_TRUE(comm.wait(worker.handle, std::chrono::steady_clock::now() + 20s).ok());
              ASSERT_TRUE(worker.start_combine(comm).ok());
              ASSERT_TRUE(comm.wait(worker.handle, std::chrono::steady_clock::now() + 20s).ok());
              EXPECT_EQ(worker.out_difference(0b100), "");
            }
          });
      EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
    }
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MembershipTest, MisuseIsNamed) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    EXPECT_EQ(error_of([&] { comm.update_membership({}); }),
              "members are empty, expected at least this rank");
    EXPECT_EQ(error_of([&] {
                comm.update_membership({0, 1, 2});
              }),
              "members[2] is 2, expected 0..1");
    EXPECT_EQ(error_of([&] { comm.update_membership({0, 1, 1}); }), "members hold rank 1 twice");
    EXPECT_EQ(error_of([&] { comm.update_membership({1 - bootstrap.rank}); }),
              "members are " + std::to_string(1 - bootstrap.rank) + ", expected this rank, " +
                  std::to_string(bootstrap.rank) + ", among them");
    EXPECT_EQ(error_of([&] { comm.mask(bootstrap.rank); }), "mask: the rank is this one: close()");
    EXPECT_EQ(error_of([&] { comm.mask(2); }), "rank is 2, expected 0..1");
    Worker worker(problem, bootstrap.rank);
    ASSERT_TRUE(worker.dispatch(comm).ok());
    EXPECT_EQ(error_of([&] {
                comm.update_membership({0, 1});
              }),
              "update_membership while a handle holds a lease: combine or release it first");
    ASSERT_TRUE(worker.combine(comm).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

TEST(MembershipTest, ThreadsAllTakePart) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    EXPECT_EQ(error_of([&] {
                comm.update_membership({0, 1});
              }),
              "members are 0, 1, expected none where ranks are threads: all take part");
    EXPECT_EQ(error_of([&] { comm.mask(1 - bootstrap.rank); }),
              "mask: ranks are threads of one process, expected processes");
  });
}

// A rank that hangs is ended; the others hear of a death and go on.
TEST(MembershipTest, AMaskedRankIsEnded) {
  const Problem problem = make_problem({.ranks = 3});
  const SharedArray<int> hangs(1);
  const std::vector<int> statuses =
      rank_statuses(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
        CommunicatorOptions options = options_for(problem);
        options.timeout = 2s;
        Communicator comm = Communicator::create(bootstrap, options);
        Worker worker(problem, bootstrap.rank);
        ASSERT_EQ(worker.round(comm), "");
        if (bootstrap.rank == 2) {
          std::atomic_ref(hangs[0]).store(1);
          for (;;) std::this_thread::sleep_for(1s);
        }
        ASSERT_TRUE(worker.start_dispatch_when_ready(comm).ok());
        const Status stuck = comm.wait(worker.handle, std::chrono::steady_clock::now() + 200ms);
        EXPECT_EQ(stuck.peer, 2) << stuck.message();
        if (stuck.code == Code::timeout) comm.mask(2);  // else the other one has done it
        const Status lost = comm.wait(worker.handle);
        EXPECT_EQ(lost.code, Code::peer_lost) << lost.message();
        EXPECT_EQ(worker.received_difference(), "");
        EXPECT_TRUE(worker.combine(comm).ok());
        EXPECT_EQ(worker.out_difference(0b100), "");
        comm.mask(2);  // gone already
        for (int round = 0; round < 3; ++round) {
          EXPECT_TRUE(worker.dispatch(comm).ok());
          EXPECT_TRUE(worker.combine(comm).ok());
          EXPECT_EQ(worker.out_difference(0b100), "");
        }
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
}

}  // namespace
}  // namespace ubep::test
