// Ranks, communicators and forked children do not get into each other's way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool writable = false;
  std::string file;
};

// Mappings of memory files in this process.
std::vector<Mapping> memory_file_mappings() {
  std::vector<Mapping> mappings;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos) continue;
    Mapping mapping;
    char permissions[8] = {};
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, permissions) != 3) continue;
    mapping.begin = begin;
    mapping.end = end;
    mapping.writable = permissions[1] == 'w';
    std::istringstream words(line);
    std::string inode;
    for (int i = 0; i < 5; ++i) words >> inode;
    mapping.file = inode;
    mappings.push_back(mapping);
  }
  return mappings;
}

// Every memory file of that name that this process has open.
std::vector<int> memory_file_descriptors(const std::string& name) {
  std::vector<int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.rfind("/memfd:" + name, 0) == 0) {
      descriptors.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  return descriptors;
}

TEST(IsolationTest, PeersMemoryCannotBeMadeWritable) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.push = options.bsp = false;
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank);
    EXPECT_EQ(worker.round(comm), "");
    std::size_t read_only = 0;
    for (const Mapping& mapping : memory_file_mappings()) {
      if (mapping.writable) continue;
      ++read_only;
      void* const memory = reinterpret_cast<void*>(mapping.begin);
      EXPECT_NE(mprotect(memory, mapping.end - mapping.begin, PROT_READ | PROT_WRITE), 0)
          << "a peer's segment became writable";
    }
    EXPECT_GE(read_only, 2U);  // one of each peer
    for (const int descriptor : memory_file_descriptors("")) {
      void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
      EXPECT_EQ(memory, MAP_FAILED) << "descriptor " << descriptor << " can be mapped for writing";
      EXPECT_NE(ftruncate(descriptor, 0), 0) << "descriptor " << descriptor << " can be cut";
    }
    EXPECT_EQ(worker.round(comm), "");
  });
}

// With push, inboxes are all that peers may write, and nobody can cut them.
TEST(IsolationTest, OnlyInboxesOfPeersAreWritable) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank, {.path = Path::push});
    EXPECT_EQ(worker.round(comm), "");
    EXPECT_EQ(memory_file_descriptors("ubep-inbox").size(), 3U);
    for (const int descriptor : memory_file_descriptors("ubep-inbox")) {
      EXPECT_NE(ftruncate(descriptor, 0), 0) << "descriptor " << descriptor << " can be cut";
    }
    const std::vector<int> segments = memory_file_descriptors("ubep-segment");
    EXPECT_EQ(segments.size(), 3U);
    for (const int descriptor : segments) {
      void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
      EXPECT_EQ(memory, MAP_FAILED) << "descriptor " << descriptor << " can be mapped for writing";
    }
    EXPECT_EQ(worker.round(comm), "");
  });
}

class SeveralTest : public testing::TestWithParam<RankKind> {};

// Different jobs in the same processes, started in different orders.
TEST_P(SeveralTest, CommunicatorsAreIndependent) {
  const Problem a = make_problem({.ranks = 2, .seed = 1});
  const Problem b =
      make_problem({.ranks = 2, .hidden = 70, .layout = Layout::expert_major, .seed = 2});
  const ThreadGroup second_group(2);
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    Bootstrap other = second_group.bootstrap(bootstrap.rank);
    if (GetParam() == RankKind::processes) {
      other = bootstrap;
      other.job += "-second";
    }
    Communicator first = Communicator::create(bootstrap, options_for(a));
    Communicator second = Communicator::create(other, options_for(b));
    Worker worker_a(a, bootstrap.rank);
    Worker worker_b(b, bootstrap.rank);
    for (int round = 0; round < 10; ++round) {
      if (bootstrap.rank == 0) {
        ASSERT_TRUE(worker_a.start_dispatch_when_ready(first).ok());
        ASSERT_TRUE(worker_b.start_dispatch_when_ready(second).ok());
      } else {
        ASSERT_TRUE(worker_b.start_dispatch_when_ready(second).ok());
        ASSERT_TRUE(worker_a.start_dispatch_when_ready(first).ok());
      }
      ASSERT_TRUE(first.wait(worker_a.handle).ok());
      ASSERT_TRUE(second.wait(worker_b.handle).ok());
      ASSERT_EQ(worker_a.received_difference(), "");
      ASSERT_EQ(worker_b.received_difference(), "");
      ASSERT_TRUE(worker_a.combine(first).ok());
      ASSERT_TRUE(worker_b.combine(second).ok());
      ASSERT_EQ(worker_a.out_difference(), "");
      ASSERT_EQ(worker_b.out_difference(), "");
    }
  });
}

TEST_P(SeveralTest, ManyCommunicatorsInTurn) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(GetParam(), 2, [&](const Bootstrap& bootstrap) {
    std::vector<Communicator> all;
    for (int i = 0; i < 6; ++i) {
      all.push_back(Communicator::create(bootstrap, options_for(problem)));
    }
    for (int round = 0; round < 3; ++round) {
      for (Communicator& comm : all) {
        Worker worker(problem, bootstrap.rank);
        ASSERT_EQ(worker.round(comm), "");
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, SeveralTest,
                         testing::Values(RankKind::threads, RankKind::processes), KindName());

bool throws_misuse(const char* what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::misuse) return true;
    std::fprintf(stderr, "%s in a forked child: %s\n", what, error.what());
    return false;
  }
  std::fprintf(stderr, "%s in a forked child did not throw\n", what);
  return false;
}

// Everything a child might call; returns its exit status.
int use_in_child(Communicator& comm, Worker& worker) {
  alarm(10);
  Rows x;
  const bool all = throws_misuse("dispatch", [&] { (void)worker.dispatch(comm); }) &&
                   throws_misuse("start_dispatch", [&] { (void)worker.start_dispatch(comm); }) &&
                   throws_misuse("combine", [&] { (void)comm.combine(worker.handle, {}); }) &&
                   throws_misuse("step", [&] { (void)comm.step(); }) &&
                   throws_misuse("poll", [&] { (void)comm.poll(worker.handle); }) &&
                   throws_misuse("wait", [&] { (void)comm.wait(worker.handle); }) &&
                   throws_misuse("release", [&] { comm.release(worker.handle); }) &&
                   throws_misuse("input", [&] { (void)comm.input(1, 1, DType::bf16, x); });
  return all ? 0 : 1;
}

TEST(ForkedChildTest, CallsThrowAndTheParentGoesOn) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::processes, 2, [&](const Bootstrap& bootstrap) {
    auto comm =
        std::make_unique<Communicator>(Communicator::create(bootstrap, options_for(problem)));
    auto worker = std::make_unique<Worker>(problem, bootstrap.rank);
    ASSERT_EQ(worker->round(*comm), "");
    ASSERT_TRUE(worker->dispatch(*comm).ok());
    const pid_t child = fork();
    if (child == 0) {
      const int status = use_in_child(*comm, *worker);
      worker.reset();  // destruction in the child touches nothing that is shared
      comm.reset();
      _exit(status);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_EQ(worker->received_difference(), "");
    ASSERT_TRUE(worker->combine(*comm).ok());
    EXPECT_EQ(worker->out_difference(), "");
    for (int i = 0; i < 5; ++i) EXPECT_EQ(worker->round(*comm), "");
  });
}

}  // namespace
}  // namespace ubep::test
