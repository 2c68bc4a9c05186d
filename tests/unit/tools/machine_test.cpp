#include "tools/ubep/machine.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>

namespace ubep::tools {
namespace {

bool has_no_children() { return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

TEST(MachineTest, CountsTheUsableCpus) {
  const std::vector<int> cpus = usable_cpus();
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(cpus.size(), static_cast<std::size_t>(CPU_COUNT(&set)));
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
  EXPECT_EQ(read_machine().cpus, static_cast<int>(cpus.size()));
}

// A busy machine may miss the deadline, so `unknown` is right too; wrong is half an answer.
TEST(PlacementTest, GivesAWholeAnswerInTimeAndLeavesNoChild) {
  const auto start = std::chrono::steady_clock::now();
  const PlacementProbe probe = probe_placement();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_TRUE(has_no_children());
  const bool known = probe.placement != Placement::unknown;
  EXPECT_EQ(probe.flag_one_way_ns.has_value(), known);
  EXPECT_EQ(probe.smt_slowdown.has_value(), known);
  if (known) {
    EXPECT_GT(*probe.flag_one_way_ns, 1);
    EXPECT_GT(*probe.smt_slowdown, 0.1);
  }
}

TEST(PlacementTest, IsUnknownWithoutTwoCpus) {
  const int cpu = usable_cpus().front();
  EXPECT_EQ(probe_placement(cpu, cpu).placement, Placement::unknown);
  EXPECT_EQ(probe_placement(-1, cpu).placement, Placement::unknown);
  EXPECT_EQ(probe_placement(cpu, 1 << 30).placement, Placement::unknown);
}

TEST(PlacementTest, IsUnknownWhenAChildCannotBePinned) {
  const std::vector<int> cpus = usable_cpus();
  if (cpus.back() >= CPU_SETSIZE - 1) GTEST_SKIP() << "the machine has all CPUs there can be";
  const PlacementProbe probe = probe_placement(cpus.front(), CPU_SETSIZE - 1);
  EXPECT_EQ(probe.placement, Placement::unknown);
  EXPECT_FALSE(probe.flag_one_way_ns);
  EXPECT_TRUE(has_no_children());
}

TEST(PlacementTest, WorksWhereTheSystemReapsChildren) {
  const auto old = std::signal(SIGCHLD, SIG_IGN);
  const PlacementProbe probe = probe_placement();
  std::signal(SIGCHLD, old);
  EXPECT_TRUE(has_no_children());
  EXPECT_EQ(probe.flag_one_way_ns.has_value(), probe.placement != Placement::unknown);
}

TEST(PlacementTest, HasNames) {
  EXPECT_EQ(placement_name(Placement::smt), "smt");
  EXPECT_EQ(placement_name(Placement::near), "near");
  EXPECT_EQ(placement_name(Placement::far), "far");
  EXPECT_EQ(placement_name(Placement::mixed), "mixed");
  EXPECT_EQ(placement_name(Placement::unknown), "unknown");
}

}  // namespace
}  // namespace ubep::tools
