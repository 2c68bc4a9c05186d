// How the ranks of one communicator find each other.
//
//   ubep::Bootstrap::from_environment()    processes of torchrun, mpirun, srun or a script
//   ubep::Bootstrap{.rank = r, .size = n, .job = "my-job"}    processes of one host and user
//   ubep::fork_ranks(n, [](const ubep::Bootstrap& b) { ...; return 0; })    n child processes
//   ubep::ThreadGroup group(n); group.bootstrap(r)            ranks are threads of this process
//
// The ranks of a communicator are either all threads of one process or all processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ubep/export.hpp"

namespace ubep {

namespace detail {
class ThreadRendezvous;
}

struct UBEP_API Bootstrap {
  int rank = 0;
  int size = 1;
  // Names the rendezvous. Its communicators are told apart by their order: all ranks create them in
  // the same order, one after the other. Those set up at the same time need different names
  // (`bootstrap.job += "/decode"`); a process that shares one is refused.
  std::string job;
  std::chrono::milliseconds timeout{30000};
  // A secret that the ranks of the job share, of any length; empty = none. Both sides of the
  // rendezvous prove that they know it before a descriptor is handed over; whoever cannot is
  // refused, and the set-up goes on without. Needs a build with libsodium. Not with threads.
  std::string key;
  // The ranks that take part, each once; empty = all of 0..size-1. The others may join later
  // (Communicator::update_membership); until then they are as ranks that died: their experts give
  // no outputs. All members name the same. Not with threads.
  std::vector<int> members;
  std::shared_ptr<detail::ThreadRendezvous> threads;  // set by ThreadGroup
  std::string launcher;                               // set by from_environment: for messages
  // The host of the first member, by name, IPv4 or IPv6, the same on all ranks: they may be on
  // several hosts, and meet there over TCP. Empty = all are on one host. Not with threads.
  std::string address;
  // Where they meet, while a communicator is made or its members change; the same on all ranks.
  // 0 = 28237.
  int port = 0;

  // The first of these that is there; the inner launcher comes before the one it runs in:
  //   UBEP_RANK           and UBEP_WORLD_SIZE, UBEP_JOB
  //   torchrun            RANK, WORLD_SIZE, when TORCHELASTIC_RUN_ID is set
  //   Open MPI's mpirun   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
  //   MPICH's mpiexec     PMI_RANK, PMI_SIZE
  //   by hand             RANK, WORLD_SIZE
  //   Slurm's srun        SLURM_PROCID, SLURM_STEP_NUM_TASKS, when SLURM_STEP_ID is set
  // The job's name comes from the launcher too (README.md), or from UBEP_RENDEZVOUS if that is set;
  // the timeout is UBEP_TIMEOUT_MS if set. Where the launcher says that ranks are on several hosts,
  // the address is MASTER_ADDR (torchrun, by hand) or the first host of SLURM_STEP_NODELIST, else
  // SLURM_JOB_NODELIST; UBEP_ADDRESS and UBEP_PORT replace it and the port, whatever it says.
  // Throws Error{setup} that names the variable: none set, half of them, no number, several hosts
  // without an address or without a job's name that is the same on all of them.
  static Bootstrap from_environment();
  // Whether any of these are there, complete or not.
  static bool in_environment();
};

// Ranks as threads of this process: for tests, sanitizers and embedding. The caller starts the
// threads; the library never does.
class UBEP_API ThreadGroup {
 public:
  explicit ThreadGroup(int size);
  Bootstrap bootstrap(int rank) const;

 private:
  int size_;
  std::shared_ptr<detail::ThreadRendezvous> rendezvous_;
};

// Runs `body` as rank 0..size-1 in `size` forked processes and waits for all. Returns their exit
// statuses: the value returned by `body`, 70 after an exception (its text goes to standard error),
// 128 + n when killed by signal n. `on_exit(rank, status)` is called as each of them ends.
UBEP_API std::vector<int> fork_ranks(int size, const std::function<int(const Bootstrap&)>& body,
                                     const std::function<void(int rank, int status)>& on_exit = {});

}  // namespace ubep
