// What each launcher's variables mean, which launcher wins, and what is refused. Maps, no setenv.
#include "api/launcher.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "support/ranks.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

using Variables = std::map<std::string, std::string>;

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

std::optional<Bootstrap> find(const Variables& variables, const std::string& starter = "77-99") {
  return find_launch({.value =
                          [&](const char* name) {
                            const auto found = variables.find(name);
                            return found == variables.end() ? nullptr : found->second.c_str();
                          },
                      .starter = [&](const char*, const char*) { return starter; }});
}

void expect_place(const Variables& variables, const Bootstrap& expected) {
  const std::optional<Bootstrap> found = find(variables);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->launcher, expected.launcher);
  EXPECT_EQ(found->rank, expected.rank);
  EXPECT_EQ(found->size, expected.size);
  EXPECT_EQ(found->job, expected.job);
}

void expect_refused(const Variables& variables, const std::string& text) {
  try {
    (void)find(variables);
    ADD_FAILURE() << "not refused: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::setup);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

Bootstrap place(const char* launcher, int rank, int size, const char* job) {
  Bootstrap bootstrap;
  bootstrap.launcher = launcher;
  bootstrap.rank = rank;
  bootstrap.size = size;
  bootstrap.job = job;
  return bootstrap;
}

const Variables kUbep{{"UBEP_RANK", "1"}, {"UBEP_WORLD_SIZE", "3"}, {"UBEP_JOB", "mine"}};
const Variables kByHand{{"RANK", "2"}, {"WORLD_SIZE", "5"}};
const Variables kMaster{{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun = kByHand + kMaster +
                            Variables{{"TORCHELASTIC_RUN_ID", "r"},
                                      {"TORCHELASTIC_RESTART_COUNT", "4"},
                                      {"LOCAL_WORLD_SIZE", "5"}};
// As Debian 12's packages set them.
const Variables kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"OMPI_MCA_ess_base_jobid", "1385168897"},
    {"PMIX_NAMESPACE", "1385168897"},    {"PMIX_RANK", "3"}};
const Variables kMpich{{"PMI_RANK", "0"},
                       {"PMI_SIZE", "2"},
                       {"PMI_FD", "6"},
                       {"MPI_LOCALNRANKS", "2"},
                       {"MPI_LOCALRANKID", "0"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},    {"SLURM_NTASKS", "6"},
                       {"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "2"},
                       {"SLURM_NNODES", "1"},    {"SLURM_STEP_NUM_TASKS", "6"}};

TEST(LauncherTest, EachIsRecognised) {
  expect_place(kUbep, place("UBEP_RANK", 1, 3, "mine"));
  expect_place(kTorchrun, place("torchrun", 2, 5, "torchrun-r-4-127.0.0.1-29500"));
  expect_place(kOpenMpi, place("Open MPI", 3, 4, "openmpi-1385168897"));
  expect_place(kMpich, place("MPICH", 0, 2, "mpich-77-99"));
  expect_place(kByHand, place("RANK", 2, 5, "env-77-99"));
  expect_place(kByHand + kMaster, place("RANK", 2, 5, "env-127.0.0.1-29500"));
  expect_place(kSlurm, place("Slurm", 5, 6, "slurm-4711-2"));
}

TEST(LauncherTest, NothingIsNoLauncher) {
  EXPECT_FALSE(find({}).has_value());
  EXPECT_FALSE(find(kMaster).has_value());
  EXPECT_FALSE(find({{"UBEP_RENDEZVOUS", "x"}}).has_value());
  EXPECT_FALSE(find({{"RANK", ""}, {"WORLD_SIZE", ""}}).has_value());
}

// A batch script is given SLURM_PROCID and SLURM_NTASKS, and is no rank.
TEST(LauncherTest, ASlurmBatchScriptIsNoRank) {
  EXPECT_FALSE(find(without(kSlurm, "SLURM_STEP_ID")).has_value());
}

TEST(LauncherTest, OtherNamesOfTheSameFacts) {
  expect_place(without(kOpenMpi, "PMIX_NAMESPACE"), place("Open MPI", 3, 4, "openmpi-1385168897"));
  expect_place(without(without(kOpenMpi, "PMIX_NAMESPACE"), "OMPI_MCA_ess_base_jobid"),
               place("Open MPI", 3, 4, "openmpi-77-99"));
  expect_place(without(kSlurm, "SLURM_STEP_NUM_TASKS"), place("Slurm", 5, 6, "slurm-4711-2"));
  expect_place(without(kTorchrun, "TORCHELASTIC_RESTART_COUNT"),
               place("torchrun", 2, 5, "torchrun-r-127.0.0.1-29500"));
}

// The step's numbers count, not the allocation's.
TEST(LauncherTest, ASlurmStepMayBeSmallerThanItsJob) {
  expect_place(
      kSlurm +
          Variables{{"SLURM_NTASKS", "64"}, {"SLURM_NNODES", "8"}, {"SLURM_STEP_NUM_NODES", "1"}},
      place("Slurm", 5, 6, "slurm-4711-2"));
}

TEST(LauncherTest, TheInnermostWins) {
  const Variables many_nodes{{"SLURM_NNODES", "4"}, {"SLURM_PROCID", "0"}};
  expect_place(kUbep + kTorchrun + kSlurm, place("UBEP_RANK", 1, 3, "mine"));
  expect_place(kTorchrun + kOpenMpi + kMpich + kSlurm + many_nodes,
               place("torchrun", 2, 5, "torchrun-r-4-127.0.0.1-29500"));
  expect_place(kOpenMpi + kSlurm + many_nodes, place("Open MPI", 3, 4, "openmpi-1385168897"));
  expect_place(kMpich + kSlurm + many_nodes, place("MPICH", 0, 2, "mpich-77-99"));
  expect_place(kByHand + kSlurm + many_nodes, place("RANK", 2, 5, "env-77-99"));
}

// srun --mpi=pmi2 gives PMI's variables too.
TEST(LauncherTest, SlurmMaySpeakPmi) {
  const Variables pmi{{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}, {"PMI_FD", "9"}};
  expect_place(kSlurm + pmi, place("Slurm", 5, 6, "slurm-4711-2"));
  expect_refused(kSlurm + pmi + Variables{{"SLURM_STEP_NUM_NODES", "2"}}, "SLURM_STEP_NUM_NODES");
}

// RANK left over from a cluster's pod, around or inside an MPI launcher.
TEST(LauncherTest, ContradictionsAreRefused) {
  const std::string text = "Open MPI says rank 3 of 4, but RANK and WORLD_SIZE say rank 2 of 5";
  expect_refused(kOpenMpi + kByHand, text);
  expect_refused(kMpich + kByHand, "MPICH says rank 0 of 2, but RANK and WORLD_SIZE");
  expect_refused(kOpenMpi + kMpich, "but PMI_RANK and PMI_SIZE say rank 0 of 2");
  expect_place(kOpenMpi + Variables{{"RANK", "3"}, {"WORLD_SIZE", "4"}},
               place("Open MPI", 3, 4, "openmpi-1385168897"));
  expect_place(kOpenMpi + Variables{{"RANK", "9"}}, place("Open MPI", 3, 4, "openmpi-1385168897"));
}

TEST(LauncherTest, TheRendezvousReplacesEveryJob) {
  const Variables mine{{"UBEP_RENDEZVOUS", "here"}};
  for (const Variables& variables :
       {kUbep, without(kUbep, "UBEP_JOB"), kTorchrun, kOpenMpi, kMpich, kByHand, kSlurm}) {
    EXPECT_EQ(find(variables + mine)->job, "here");
  }
  EXPECT_EQ(find(kByHand + mine, "")->job, "here");
}

TEST(LauncherTest, TheKeyIsThatOfTheEnvironment) {
  EXPECT_EQ(find(kTorchrun)->key, "");
  EXPECT_EQ(find(kTorchrun + Variables{{"UBEP_JOB_KEY", "a secret"}})->key, "a secret");
  EXPECT_THROW((void)find(kTorchrun + Variables{{"UBEP_JOB_KEY", ""}}), Error);
}

TEST(LauncherTest, TheTimeoutIsThatOfTheWaits) {
  EXPECT_EQ(find(kUbep)->timeout, std::chrono::seconds(30));
  EXPECT_EQ(find(kUbep + Variables{{"UBEP_TIMEOUT_MS", "1500"}})->timeout,
            std::chrono::milliseconds(1500));
  expect_refused(kUbep + Variables{{"UBEP_TIMEOUT_MS", "0"}}, "UBEP_TIMEOUT_MS is '0'");
}

TEST(LauncherTest, HalfAnEnvironmentIsRefused) {
  for (const Variables& variables : {kUbep, kTorchrun, kOpenMpi, kMpich, kByHand}) {
    int names = 0;
    for (const char* name :
         {"UBEP_RANK", "UBEP_WORLD_SIZE", "UBEP_JOB", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"}) {
      if (variables.count(name) == 0) continue;
      ++names;
      expect_refused(without(variables, name), std::string(name) + " is not set");
    }
    EXPECT_GE(names, 2);
  }
  expect_refused(without(kSlurm, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set");
  expect_refused(without(without(kSlurm, "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS"),
                 "SLURM_NTASKS is not set");
  expect_refused({{"UBEP_JOB", "job"}}, "UBEP_RANK is not set");
}

TEST(LauncherTest, WhatIsNoNumberIsRefused) {
  expect_refused(kByHand + Variables{{"RANK", "x"}}, "RANK is 'x', expected a number, 0..4");
  expect_refused(kByHand + Variables{{"RANK", "2 "}}, "RANK is '2 '");
  expect_refused(kByHand + Variables{{"WORLD_SIZE", "65"}}, "WORLD_SIZE is '65'");
  expect_refused(kByHand + Variables{{"WORLD_SIZE", "0"}}, "WORLD_SIZE is '0'");
  expect_refused(kOpenMpi + Variables{{"OMPI_COMM_WORLD_RANK", "4"}},
                 "OMPI_COMM_WORLD_RANK is '4', expected a number, 0..3");
  expect_refused(kMpich + Variables{{"PMI_RANK", "-1"}}, "PMI_RANK is '-1'");
  expect_refused(kSlurm + Variables{{"SLURM_PROCID", "6"}}, "SLURM_PROCID is '6'");
  expect_refused(kUbep + Variables{{"UBEP_WORLD_SIZE", "99999999999"}}, "UBEP_WORLD_SIZE is '9");
  expect_refused(kUbep + Variables{{"UBEP_WORLD_SIZE", "0"}},
                 "UBEP_WORLD_SIZE is '0', expected a number, 1..64");
  expect_refused(kUbep + Variables{{"UBEP_RANK", "x"}},
                 "UBEP_RANK is 'x', expected a number, 0..2");
  expect_refused(kUbep + Variables{{"UBEP_RANK", "-1"}}, "UBEP_RANK is '-1'");
  expect_refused(kUbep + Variables{{"UBEP_RANK", "3"}}, "UBEP_RANK is '3'");
  for (const char* text : {"-1", "x", "1s", "99999999999999999999"}) {
    expect_refused(kUbep + Variables{{"UBEP_TIMEOUT_MS", text}},
                   std::string("UBEP_TIMEOUT_MS is '") + text + "', expected a number, 1..");
  }
}

TEST(LauncherTest, OneHostNeedsNoAddress) {
  for (const Variables& variables :
       {kUbep, kTorchrun, kOpenMpi, kMpich, kByHand, kByHand + kMaster, kSlurm}) {
    EXPECT_EQ(find(variables)->address, "");
    EXPECT_EQ(find(variables)->port, 0);
  }
}

TEST(LauncherTest, SeveralHostsMeetWhereTheLauncherSays) {
  const Variables few{{"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "host-a"}};
  EXPECT_EQ(find(kTorchrun + few)->address, "host-a");
  EXPECT_EQ(find(kTorchrun + few)->port, 0);  // MASTER_PORT is torch's own
  EXPECT_EQ(find(kTorchrun + few)->job, "torchrun-r-4-host-a-29500");
  EXPECT_EQ(find(kByHand + few)->address, "host-a");
  expect_refused(without(kTorchrun + few, "MASTER_ADDR"),
                 "LOCAL_WORLD_SIZE is 4, but the world has 5 ranks (torchrun): they are on several "
                 "hosts: expected the host of rank 0 in MASTER_ADDR or UBEP_ADDRESS");
  expect_refused(kByHand + Variables{{"LOCAL_WORLD_SIZE", "1"}}, "in MASTER_ADDR or UBEP_ADDRESS");
  expect_refused(kOpenMpi + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                 "expected the host of rank 0 in UBEP_ADDRESS");
  expect_refused(kMpich + Variables{{"MPI_LOCALNRANKS", "1"}}, "in UBEP_ADDRESS");
}

TEST(LauncherTest, SlurmNamesTheHosts) {
  const Variables two = kSlurm + Variables{{"SLURM_NNODES", "2"}};
  expect_refused(two,
                 "SLURM_NNODES is 2: ranks are on several hosts: expected their names in "
                 "SLURM_JOB_NODELIST, or the host of rank 0 in UBEP_ADDRESS");
  const std::map<std::string, std::string> first{
      {"a", "a"},
      {"a,b", "a"},
      {"node[03-05,7]", "node03"},
      {"node[7,9-11],other", "node7"},
      {"node[12]-ib,x", "node12-ib"},
      {"rack[1-2]node[04-06],b", "rack1node04"},
      {"host-1.example.org,host-2", "host-1.example.org"}};
  for (const auto& [list, host] : first) {
    EXPECT_EQ(find(two + Variables{{"SLURM_JOB_NODELIST", list}})->address, host) << list;
  }
  for (const char* list : {"node[", "node[03", "node[]", "node[-3]", "node]", ",a", "[,1]"}) {
    expect_refused(two + Variables{{"SLURM_JOB_NODELIST", list}},
                   std::string("SLURM_JOB_NODELIST is '") + list + "', expected names of hosts");
  }
  // The step's hosts count.
  const Variables lists{{"SLURM_JOB_NODELIST", "a,b"}, {"SLURM_STEP_NODELIST", "b,c"}};
  EXPECT_EQ(find(two + lists)->address, "b");
  EXPECT_EQ(find(kSlurm + lists)->address, "");
}

TEST(LauncherTest, OurAddressAndPortAlwaysWin) {
  const Variables ours{{"UBEP_ADDRESS", "here"}, {"UBEP_PORT", "1234"}, {"UBEP_RENDEZVOUS", "job"}};
  const Variables several{{"LOCAL_WORLD_SIZE", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                          {"MPI_LOCALNRANKS", "1"},
                          {"SLURM_NNODES", "2"}};
  for (const Variables& variables : {kUbep, kTorchrun, kOpenMpi, kMpich, kByHand, kSlurm}) {
    for (const Variables& all : {variables + ours, variables + several + ours}) {
      EXPECT_EQ(find(all)->address, "here");
      EXPECT_EQ(find(all)->port, 1234);
    }
  }
  for (const char* port : {"0", "65536", "x"}) {
    expect_refused(kUbep + Variables{{"UBEP_PORT", port}}, "UBEP_PORT is '");
  }
}

// The process that started the ranks is another one on each host.
TEST(LauncherTest, SeveralHostsNeedAJobThatAllKnow) {
  const Variables here{{"UBEP_ADDRESS", "here"}};
  const Variables bare_open_mpi =
      without(without(kOpenMpi, "PMIX_NAMESPACE"), "OMPI_MCA_ess_base_jobid");
  expect_refused(kByHand + here, "expected a name in UBEP_RENDEZVOUS");
  expect_refused(kMpich + here + Variables{{"MPI_LOCALNRANKS", "1"}}, "UBEP_RENDEZVOUS");
  expect_refused(bare_open_mpi + here + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}},
                 "UBEP_RENDEZVOUS");
  EXPECT_EQ(find(kMpich + here)->job, "mpich-77-99");  // all on one host, it says
  EXPECT_EQ(find(kByHand + here + Variables{{"LOCAL_WORLD_SIZE", "5"}})->job, "env-77-99");
  EXPECT_EQ(find(kByHand + here + kMaster)->job, "env-127.0.0.1-29500");
}

TEST(LauncherTest, WithoutAStarterAJobMustBeNamed) {
  const Variables variables = kByHand;
  EXPECT_THROW((void)find(variables, ""), Error);
  EXPECT_EQ(find(variables + kMaster, "")->job, "env-127.0.0.1-29500");
}

// Wrappers between: tests/launchers/by_hand.sh.
TEST(StarterTest, IsTheParentThatDidNotBeginWithOurRank) {
  setenv("UBEP_TEST_SIZE", "8", 1);
  setenv("UBEP_TEST_RANK", "7", 1);  // of no effect on what this process began with
  const std::string here = fmt::format("{}-", getpid());
  test::run_ranks(test::RankKind::processes, 1, [&](const Bootstrap&) {
    const std::string starter = facts_of_this_process().starter("UBEP_TEST_RANK", "UBEP_TEST_SIZE");
    EXPECT_EQ(starter.rfind(here, 0), 0U) << starter << " is not " << here;
    EXPECT_GT(starter.size(), here.size()) << "no start time";
  });
  unsetenv("UBEP_TEST_RANK");
  unsetenv("UBEP_TEST_SIZE");
}

}  // namespace
}  // namespace ubep
