// Set-up: what goes wrong is named, in time, and nothing is left behind.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kShort{1500};

// Creates a communicator that must fail; returns the message.
std::string creation_error(const Bootstrap& bootstrap, const CommunicatorOptions& options,
                           ErrorCode code = ErrorCode::setup) {
  const auto start = steady_clock::now();
  std::string message;
  try {
    const Communicator comm = Communicator::create(bootstrap, options);
    ADD_FAILURE() << "creation on rank " << bootstrap.rank << " did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    message = error.what();
  }
  EXPECT_LT(steady_clock::now() - start, bootstrap.timeout + std::chrono::seconds(3)) << message;
  return message;
}

void expect_in(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

class CreationTest : public testing::TestWithParam<RankKind> {
 protected:
  using Change = std::function<void(CommunicatorOptions&)>;

  // Rank 1 of 3 has other options than the rest: every rank says which field, and both values.
  void disagree(const Change& change, std::initializer_list<const char*> parts) {
    const Problem problem = make_problem({.ranks = 3});
    CommunicatorOptions options = options_for(problem);
    options.expert_rank = {0, 0, 1, 1, 2, 2};
    run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
      CommunicatorOptions mine = options;
      if (bootstrap.rank == 1) change(mine);
      Bootstrap quick = bootstrap;
      quick.timeout = std::chrono::seconds(10);
      const std::string message = creation_error(quick, mine);
      expect_in(message, parts);
      if (bootstrap.rank != 1) expect_in(message, {"rank 1"});
    });
  }
};

TEST_P(CreationTest, NamesDifferentNumExperts) {
  disagree(
      [](CommunicatorOptions& options) {
        options.num_experts = 7;
        options.expert_rank.push_back(0);
      },
      {"num_experts", "6", "7"});
}
TEST_P(CreationTest, NamesADifferentExpertMap) {
  disagree([](CommunicatorOptions& options) { options.expert_rank[3] = 2; }, {"expert_rank"});
}
TEST_P(CreationTest, NamesDifferentMaxTokens) {
  disagree([](CommunicatorOptions& options) { options.max_tokens = 77; },
           {"max_tokens", "6", "77"});
}
TEST_P(CreationTest, NamesDifferentMaxHidden) {
  disagree([](CommunicatorOptions& options) { options.max_hidden = 640; },
           {"max_hidden", "1280"});  // compared in bytes, whole cache lines
}
TEST_P(CreationTest, NamesDifferentMaxTopk) {
  disagree([](CommunicatorOptions& options) { options.max_topk = 5; }, {"max_topk", "2", "5"});
}
TEST_P(CreationTest, NamesDifferentSlots) {
  disagree([](CommunicatorOptions& options) { options.slots = 3; }, {"slots", "2", "3"});
}

TEST_P(CreationTest, NamesDifferentProtocols) {
  disagree([](CommunicatorOptions& options) { options.protocol = Protocol::sentinel; },
           {"protocol", "put-with-signal", "sp"});
}
TEST_P(CreationTest, NamesDifferentStages) {
  disagree([](CommunicatorOptions& options) { options.stage_pushed = true; },
           {"stage_pushed", "0", "1"});
}

TEST_P(CreationTest, StoreAndTimeoutMayDiffer) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.store = bootstrap.rank == 0 ? Store::near : Store::far;
    options.timeout = std::chrono::seconds(10 + bootstrap.rank);
    Communicator comm = Communicator::create(bootstrap, options);
    EXPECT_EQ(comm.facts().store, options.store);
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
  });
}

// The default map: the first E mod R ranks own one expert more.
TEST_P(CreationTest, RanksMayOwnDifferentNumbersOfExperts) {
  Problem problem = make_problem({.ranks = 3});
  problem.num_experts = 7;
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    EXPECT_EQ(comm.rank(), bootstrap.rank);
    EXPECT_EQ(comm.size(), 3);
    EXPECT_EQ(comm.num_local_experts(), bootstrap.rank == 0 ? 3 : 2);
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
  });
}

// The rank that never comes is named.
void leave_out(RankKind kind, int missing) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(kind, 3, [&](const Bootstrap& bootstrap) {
    if (bootstrap.rank == missing) return;
    Bootstrap quick = bootstrap;
    quick.timeout = kShort;
    const std::string message = creation_error(quick, options_for(problem));
    const std::string text = "rank " + std::to_string(missing) + " did not arrive";
    expect_in(message, {text.c_str(), "of 3 ranks"});
    if (kind == RankKind::processes) expect_in(message, {bootstrap.job.c_str(), "socket @ubep-"});
  });
}
TEST_P(CreationTest, AMissingRankIsNamed) { leave_out(GetParam(), 2); }
TEST_P(CreationTest, TheMissingFirstRankIsNamed) { leave_out(GetParam(), 0); }

TEST_P(CreationTest, TheSameNameCanBeUsedAgain) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    for (int i = 0; i < 5; ++i) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      Worker worker(problem, bootstrap.rank);
      EXPECT_EQ(worker.round(comm), "") << i;
    }
  });
}

TEST_P(CreationTest, ARankOutsideTheWorldIsRefused) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 1, [&](Bootstrap bootstrap) {
    bootstrap.rank = 2;
    bootstrap.size = 2;
    expect_in(creation_error(bootstrap, options_for(problem), ErrorCode::invalid_argument),
              {"rank", "2"});
    bootstrap.rank = -1;
    expect_in(creation_error(bootstrap, options_for(problem), ErrorCode::invalid_argument),
              {"rank", "-1"});
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, CreationTest,
                         testing::Values(RankKind::threads, RankKind::processes), KindName());

std::string unique_job(const char* what) {
  return std::string("ubep-test-") + what + "-" + std::to_string(getpid());
}

TEST(CreationByJobTest, AnotherWorldSizeIsNamed) {
  const Problem problem = make_problem({.ranks = 2});
  const std::string job = unique_job("size");
  run_ranks(RankKind::processes, 2, [&](Bootstrap bootstrap) {
    bootstrap.job = job;
    bootstrap.timeout = kShort;
    if (bootstrap.rank == 1) bootstrap.size = 3;
    CommunicatorOptions options = options_for(problem);
    expect_in(creation_error(bootstrap, options), {"size", "2", "3"});
  });
}

TEST(CreationByJobTest, TwoRanksOfOneNumberAreNamed) {
  const Problem problem = make_problem({.ranks = 3});
  const std::string job = unique_job("number");
  run_ranks(RankKind::processes, 3, [&](Bootstrap bootstrap) {
    bootstrap.job = job;
    bootstrap.timeout = kShort;
    if (bootstrap.rank == 2) bootstrap.rank = 1;
    expect_in(creation_error(bootstrap, options_for(problem)), {"rank"});
  });
}

TEST(CreationByJobTest, ProcessesMeetByEnvironment) {
  const Problem problem = make_problem({.ranks = 2});
  const std::string job = unique_job("environment");
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    setenv("UBEP_RANK", std::to_string(bootstrap.rank).c_str(), 1);
    setenv("UBEP_WORLD_SIZE", "2", 1);
    setenv("UBEP_JOB", job.c_str(), 1);
    Communicator comm = Communicator::create(Bootstrap::from_environment(), options_for(problem));
    Worker worker(problem, comm.rank());
    EXPECT_EQ(comm.rank(), bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
  });
}

// As a launcher leaves the environment of each of `size` ranks; `body` reads it.
void run_launched(const char* what, int size, const std::function<void(int rank)>& body) {
  const std::string port = unique_job(what);
  run_ranks(RankKind::processes, size, [&](const Bootstrap& bootstrap) {
    setenv("RANK", std::to_string(bootstrap.rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    setenv("MASTER_PORT", port.c_str(), 1);
    body(bootstrap.rank);
  });
}

// They live at the same time and are used in turns; no rank waits for the others in between.
TEST(CreationByJobTest, OneLaunchServesManyCommunicators) {
  const Problem problem = make_problem({.ranks = 3});
  const Problem other = make_problem({.ranks = 3, .tokens = 9, .hidden = 40});
  run_launched("many", 3, [&](int rank) {
    Communicator first = Communicator::create(Bootstrap::from_environment(), options_for(problem));
    Communicator second = Communicator::create(Bootstrap::from_environment(), options_for(other));
    Communicator third = Communicator::create(Bootstrap::from_environment(), options_for(problem));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Worker(other, rank).round(second), "");
      EXPECT_EQ(Worker(problem, rank).round(third), "");
      EXPECT_EQ(Worker(problem, rank).round(first), "");
    }
  });
}

// In another order they meet, and the difference is named, not taken.
TEST(CreationByJobTest, AnotherOrderIsNamed) {
  const Problem problem = make_problem({.ranks = 2});
  const Problem other = make_problem({.ranks = 2, .tokens = 9});
  run_launched("order", 2, [&](int rank) {
    Bootstrap bootstrap = Bootstrap::from_environment();
    bootstrap.timeout = kShort;
    const std::string message = creation_error(bootstrap, options_for(rank == 0 ? problem : other));
    expect_in(message, {"max_tokens", "6", "9"});
  });
}

// Names of their own let threads set up communicators in any order.
TEST(CreationByJobTest, NamesTellCommunicatorsOfThreadsApart) {
  const Problem problem = make_problem({.ranks = 2});
  const Problem other = make_problem({.ranks = 2, .tokens = 9});
  run_launched("threads", 2, [&](int rank) {
    const auto serve = [rank](const char* name, const Problem& mine) {
      Bootstrap bootstrap = Bootstrap::from_environment();
      bootstrap.job += name;
      Communicator comm = Communicator::create(bootstrap, options_for(mine));
      EXPECT_EQ(Worker(mine, rank).round(comm), "");
    };
    std::thread prefill([&] { serve("/prefill", problem); });
    serve("/decode", other);
    prefill.join();
  });
}

TEST(CreationByJobTest, AMissingVariableIsNamed) {
  for (const char* missing : {"UBEP_RANK", "UBEP_WORLD_SIZE", "UBEP_JOB"}) {
    run_ranks(RankKind::processes, 1, [&](const Bootstrap&) {
      setenv("UBEP_RANK", "0", 1);
      setenv("UBEP_WORLD_SIZE", "1", 1);
      setenv("UBEP_JOB", "job", 1);
      unsetenv(missing);
      try {
        (void)Bootstrap::from_environment();
        ADD_FAILURE() << missing;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::setup);
        expect_in(error.what(), {missing});
      }
    });
  }
}

TEST(ForkRanksTest, ReturnsWhatEndedEachRank) {
  const std::vector<int> statuses = fork_ranks(4, [](const Bootstrap& bootstrap) {
    if (bootstrap.rank == 1) throw std::runtime_error("an expected exception of this test");
    if (bootstrap.rank == 2) raise(SIGKILL);
    return bootstrap.rank * 2;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 70, 128 + SIGKILL, 6}));
}

std::set<std::string> entries_of(const char* directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(LeftoversTest, NothingInShmAndNoChild) {
  const std::set<std::string> before = entries_of("/dev/shm");
  const Problem problem = make_problem({.ranks = 3});
  (void)rank_statuses(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
    if (bootstrap.rank == 2) raise(SIGKILL);
  });
  EXPECT_EQ(entries_of("/dev/shm"), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(LeftoversTest, DescriptorsAndMappingsAreGivenBack) {
  const Problem problem = make_problem({.ranks = 3});
  const auto use = [&] {
    run_ranks(RankKind::threads, 3, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      Worker worker(problem, bootstrap.rank);
      EXPECT_EQ(worker.round(comm), "");
    });
  };
  use();  // what is kept for the life of the process is there now
  const std::set<std::string> before = entries_of("/proc/self/fd");
  for (int i = 0; i < 3; ++i) use();
  EXPECT_EQ(entries_of("/proc/self/fd"), before);
}

}  // namespace
}  // namespace ubep::test
