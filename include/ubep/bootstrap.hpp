// How the ranks of one communicator find each other.
//
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
  // Names the rendezvous. Communicators that are set up at the same time need different names.
  std::string job;
  std::chrono::milliseconds timeout{30000};
  std::shared_ptr<detail::ThreadRendezvous> threads;  // set by ThreadGroup

  // UBEP_RANK, UBEP_WORLD_SIZE, UBEP_JOB. Throws Error{setup} naming the variable that is missing.
  static Bootstrap from_environment();
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
