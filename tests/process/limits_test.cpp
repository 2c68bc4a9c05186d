// Set-up under limits of the system, on one rank or on all: every rank says which limit and what to
// do, soon, leaves nothing behind, and a later set-up works.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "support/leftovers.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // whose address space has no room for a limit
#else
constexpr bool kSanitized = false;
#endif

namespace ubep::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr seconds kTimeout{25};  // of the library
constexpr seconds kSoon{6};      // on a busy machine; about 1 on an idle one

// A soft limit for as long as it lives.
class Limited {
 public:
  Limited(decltype(RLIMIT_AS) resource, rlim_t value) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit limit{value, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource_, &limit), 0);
  }
  ~Limited() { setrlimit(resource_, &before_); }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

 private:
  decltype(RLIMIT_AS) resource_;
  rlimit before_ = {};
};

// The limit under which `spare` more files can be opened.
rlim_t files_for(int spare) {
  int number = 0;
  for (;; ++number) {
    if (fcntl(number, F_GETFD) >= 0) continue;
    if (spare-- == 0) return static_cast<rlim_t>(number);
  }
}

// What a creation that must fail says.
std::string failure_of(const Bootstrap& bootstrap, const CommunicatorOptions& options) {
  const auto start = steady_clock::now();
  std::string message;
  try {
    (void)Communicator::create(bootstrap, options);
    ADD_FAILURE() << "creation on rank " << bootstrap.rank << " did not fail";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::setup || error.code() == ErrorCode::invalid_argument);
    message = error.what();
  }
  EXPECT_LT(steady_clock::now() - start, kSoon) << message;
  return message;
}

// `limited` runs its argument under the limit. Ranks in `who` are, the others are told.
struct Case {
  std::set<int> who;
  std::function<void(const std::function<void()>&)> limited;
  Parts parts;
  CommunicatorOptions options;
};

void expect_told(RankKind kind, const std::vector<Case>& cases) {
  const Problem problem = make_problem({.ranks = kRanks});
  std::vector<std::unique_ptr<Gate>> gates;
  for (std::size_t i = 0; i < cases.size(); ++i) gates.push_back(std::make_unique<Gate>(kRanks));
  run_ranks(kind, kRanks, [&](const Bootstrap& given) {
    Bootstrap bootstrap = given;
    bootstrap.timeout = kTimeout;
    // What is kept for the life of the process is there afterwards.
    {
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      EXPECT_EQ(Worker(problem, given.rank).round(comm), "");
    }
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& now = cases[i];
      SCOPED_TRACE("case " + std::to_string(i) + ", rank " + std::to_string(given.rank));
      const Holdings before = kind == RankKind::processes ? holdings() : Holdings{};
      const auto fail = [&] { expect_parts(failure_of(bootstrap, now.options), now.parts); };
      now.who.contains(given.rank) ? now.limited(fail) : fail();
      if (kind == RankKind::processes) {
        EXPECT_EQ(holdings(), before);
      }
      gates[i]->arrive_and_wait();
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      EXPECT_EQ(Worker(problem, given.rank).round(comm), "");
    }
  });
}

CommunicatorOptions small() { return options_for(make_problem({.ranks = kRanks})); }

TEST(LimitsTest, OpenFiles) {
  std::vector<Case> cases;
  for (const std::set<int>& who : {std::set<int>{0}, {1}, {2}, {0, 1, 2}}) {
    for (const int spare : {0, 1, 2, 3, 4, 6}) {
      cases.push_back({who,
                       [spare](const std::function<void()>& body) {
                         const Limited limit(RLIMIT_NOFILE, files_for(spare));
                         body();
                       },
                       {"too many open files", "this process may have", "ulimit -n", "raise it"},
                       small()});
    }
  }
  expect_told(RankKind::processes, cases);
}

TEST(LimitsTest, FileSize) {
  std::vector<Case> cases;
  for (const std::set<int>& who : {std::set<int>{0}, {2}, {0, 1, 2}}) {
    cases.push_back({who,
                     [](const std::function<void()>& body) {
                       const Limited limit(RLIMIT_FSIZE, 4096);
                       body();
                     },
                     {"shared memory", "file size", "ulimit -f"},
                     small()});
  }
  expect_told(RankKind::processes, cases);
}

TEST(LimitsTest, AddressSpace) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's address space has no room for a limit";
  CommunicatorOptions large = small();
  large.max_tokens = 1024;
  large.max_hidden = 4096;
  std::vector<Case> cases;
  for (const std::set<int>& who : {std::set<int>{0}, {1}, {0, 1, 2}}) {
    for (const int spare_mib : {1, 16, 64}) {
      cases.push_back({who,
                       [spare_mib](const std::function<void()>& body) {
                         const Limited limit(
                             RLIMIT_AS,
                             static_cast<rlim_t>(status_line("VmSize") + spare_mib * 1024) * 1024);
                         body();
                       },
                       {"address space", "ulimit -v", "max_tokens"},
                       large});
    }
  }
  expect_told(RankKind::processes, cases);
}

// A control group (version 2) of 24 MiB, as far as this process may make one.
class SmallGroup {
 public:
  SmallGroup() {
    std::error_code error;
    std::filesystem::create_directory(path_, error);
    made_ = !error && write("memory.max", 24 << 20);
  }
  ~SmallGroup() { rmdir(path_.c_str()); }
  SmallGroup(const SmallGroup&) = delete;
  SmallGroup& operator=(const SmallGroup&) = delete;

  bool made() const { return made_; }
  bool enter() const { return write("cgroup.procs", getpid()); }

 private:
  bool write(const char* file, long value) const {
    if (access((path_ / file).c_str(), W_OK) != 0) return false;
    std::ofstream out(path_ / file);
    return static_cast<bool>(out << value << std::flush);
  }
  std::filesystem::path path_ = "/sys/fs/cgroup/ubep-test-" + std::to_string(getpid());
  bool made_ = false;
};

TEST(LimitsTest, MemoryOfAControlGroup) {
  const SmallGroup group;
  if (!group.made()) GTEST_SKIP() << "no control group of version 2 can be made here";
  CommunicatorOptions large = small();
  large.max_tokens = 4096;
  large.max_hidden = 4096;
  expect_told(RankKind::processes, {{{1},
                                     [&](const std::function<void()>& body) {
                                       ASSERT_TRUE(group.enter());
                                       body();
                                     },
                                     {"available are", "memory.max", "max_tokens"},
                                     large}});
}

TEST(LimitsTest, OptionsOfOneRankThatCannotBe) {
  for (const RankKind kind : {RankKind::processes, RankKind::threads}) {
    const Problem problem = make_problem({.ranks = kRanks});
    std::vector<std::unique_ptr<Gate>> gates;
    for (int i = 0; i < kRanks; ++i) gates.push_back(std::make_unique<Gate>(kRanks));
    run_ranks(kind, kRanks, [&](const Bootstrap& given) {
      Bootstrap bootstrap = given;
      bootstrap.timeout = kTimeout;
      for (int who = 0; who < kRanks; ++who) {
        CommunicatorOptions mine = small();
        if (given.rank == who) mine.max_topk = 65;
        expect_parts(failure_of(bootstrap, mine), {"max_topk is 65, expected 1..64"});
        gates[static_cast<std::size_t>(who)]->arrive_and_wait();
        Communicator comm = Communicator::create(bootstrap, small());
        EXPECT_EQ(Worker(problem, given.rank).round(comm), "");
      }
    });
  }
}

// --- processes ---

// As another user than root, whom no limit of processes binds; returns the child's status.
int as_nobody(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kRankSeconds);
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(77);
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(LimitsTest, Processes) {
  const int status = as_nobody([] {
    const auto good = [](const Bootstrap&) { return 0; };
    for (const rlim_t most : {1, 2, 3}) {
      {
        const Limited limit(RLIMIT_NPROC, most);
        const Holdings before = holdings();
        expect_error(ErrorCode::setup,
                     {"cannot fork rank", "processes", "ulimit -u", "fewer ranks"},
                     [&] { (void)fork_ranks(8, good); });
        EXPECT_EQ(holdings(), before);
        EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
        EXPECT_EQ(errno, ECHILD);
      }
      EXPECT_EQ(fork_ranks(3, good), (std::vector<int>{0, 0, 0}));
    }
  });
  if (status == 77) GTEST_SKIP() << "cannot become another user";
  EXPECT_EQ(status, 0);
}

// --- many, one after the other ---

TEST(ManyCommunicatorsTest, AThousandLeaveNothing) {
  const Problem problem = make_problem({.ranks = 2});
  for (const RankKind kind : {RankKind::threads, RankKind::processes}) {
    const SharedArray<std::int64_t> grown(1);
    const auto use = [&](const Bootstrap& bootstrap, int times) {
      for (int i = 0; i < times; ++i) {
        Communicator comm = Communicator::create(bootstrap, options_for(problem));
        if (i % 10 != 0) continue;
        EXPECT_EQ(Worker(problem, bootstrap.rank).round(comm), "") << i;
      }
    };
    if (kind == RankKind::threads) {
      run_ranks(kind, 2, [&](const Bootstrap& b) { use(b, 100); });
      const Holdings before = holdings();
      const std::int64_t resident = status_line("VmRSS");
      run_ranks(kind, 2, [&](const Bootstrap& b) { use(b, 1000); });
      EXPECT_EQ(holdings(), before);
      grown[0] = status_line("VmRSS") - resident;
    } else {
      run_ranks(kind, 2, [&](const Bootstrap& bootstrap) {
        use(bootstrap, 100);
        const Holdings before = holdings();
        const std::int64_t resident = status_line("VmRSS");
        use(bootstrap, 1000);
        EXPECT_EQ(holdings(), before);
        if (bootstrap.rank == 0) grown[0] = status_line("VmRSS") - resident;
      });
    }
    EXPECT_LT(grown[0], kSanitized ? 524288 : 1024) << name(kind) << ": KiB";
  }
}

}  // namespace
}  // namespace ubep::test
