#include "ubep/bootstrap.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "api/launcher.hpp"
#include "base/group_config.hpp"
#include "base/system_limits.hpp"
#include "fabric/shm/thread_rendezvous.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr int kUncaught = 70;

[[noreturn]] void run_child(int parent, const Bootstrap& bootstrap,
                            const std::function<int(const Bootstrap&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kUncaught);
  int status = kUncaught;
  try {
    status = body(bootstrap);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "rank %d: unknown exception\n", bootstrap.rank);
  }
  std::fflush(nullptr);
  _exit(status);
}

// A parent that ignores SIGCHLD (a disposition that survives exec) would never learn how its
// children ended.
class ChildrenCanBeAwaited {
 public:
  ChildrenCanBeAwaited() {
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, nullptr, &saved_);
    replaced_ = saved_.sa_handler == SIG_IGN || (saved_.sa_flags & SA_NOCLDWAIT) != 0;
    if (replaced_) sigaction(SIGCHLD, &standard, nullptr);
  }
  ~ChildrenCanBeAwaited() {
    if (replaced_) sigaction(SIGCHLD, &saved_, nullptr);
  }
  ChildrenCanBeAwaited(const ChildrenCanBeAwaited&) = delete;
  ChildrenCanBeAwaited& operator=(const ChildrenCanBeAwaited&) = delete;

 private:
  struct sigaction saved_ = {};
  bool replaced_ = false;
};

int reap(pid_t child) {
  int status = 0;
  pid_t reaped = -1;
  while ((reaped = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  if (reaped < 0) return kUncaught;  // somebody else reaped it: how it ended is lost
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Waits for all children, in the order in which they end; other children of the caller are left be.
std::vector<int> wait_for(const std::vector<pid_t>& children,
                          const std::function<void(int rank, int status)>& on_exit) {
  std::vector<int> statuses(children.size());
  std::size_t left = children.size();
  const auto ended = [&](std::size_t r) {
    statuses[r] = reap(children[r]);
    --left;
    if (on_exit) on_exit(static_cast<int>(r), statuses[r]);
  };
  std::vector<pollfd> running;  // a process descriptor is readable once its process has ended
  for (std::size_t r = 0; r < children.size(); ++r) {
    const auto fd = static_cast<int>(syscall(SYS_pidfd_open, children[r], 0));
    running.push_back({fd, POLLIN, 0});
    if (fd < 0) ended(r);  // none to be had: this one is waited for first
  }
  while (left > 0) {
    while (poll(running.data(), running.size(), -1) < 0 && errno == EINTR) {
    }
    for (std::size_t r = 0; r < running.size(); ++r) {
      if (running[r].fd < 0 || running[r].revents == 0) continue;
      ended(r);
      close(std::exchange(running[r].fd, -1));
    }
  }
  return statuses;
}

}  // namespace

Bootstrap Bootstrap::from_environment() {
  if (auto found = find_launch(facts_of_this_process())) return *found;
  throw Error(ErrorCode::setup,
              "UBEP_RANK is not set: expected UBEP_RANK, UBEP_WORLD_SIZE and UBEP_JOB, or RANK and "
              "WORLD_SIZE, or the variables of torchrun, mpirun or srun");
}

bool Bootstrap::in_environment() {
  try {
    return find_launch(facts_of_this_process()).has_value();
  } catch (const Error&) {
    return true;  // from_environment() will say what is wrong with them
  }
}

ThreadGroup::ThreadGroup(int size) : size_(size) {
  if (size < 1 || size > kMaxRanks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("size is {}, expected 1..{}", size, kMaxRanks));
  }
  rendezvous_ = std::make_shared<detail::ThreadRendezvous>(size);
}

Bootstrap ThreadGroup::bootstrap(int rank) const {
  Bootstrap bootstrap;
  bootstrap.rank = rank;
  bootstrap.size = size_;
  bootstrap.threads = rendezvous_;
  return bootstrap;
}

std::vector<int> fork_ranks(int size, const std::function<int(const Bootstrap&)>& body,
                            const std::function<void(int rank, int status)>& on_exit) {
  if (size < 1 || size > kMaxRanks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("size is {}, expected 1..{}", size, kMaxRanks));
  }
  const ChildrenCanBeAwaited awaited;
  static int calls = 0;
  Bootstrap bootstrap;
  bootstrap.size = size;
  bootstrap.job = fmt::format("fork-{}-{}", getpid(), ++calls);
  std::fflush(nullptr);
  const int parent = getpid();
  std::vector<pid_t> children;
  for (bootstrap.rank = 0; bootstrap.rank < size; ++bootstrap.rank) {
    const pid_t child = fork();
    if (child == 0) run_child(parent, bootstrap, body);
    if (child < 0) {
      const int error = errno;
      for (pid_t other : children) kill(other, SIGKILL);
      for (pid_t other : children) waitpid(other, nullptr, 0);
      throw Error(ErrorCode::setup,
                  fmt::format("cannot fork rank {}: {}", bootstrap.rank, explain_fork(error)));
    }
    children.push_back(child);
  }
  return wait_for(children, on_exit);
}

}  // namespace ubep
