#include "base/system_limits.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "ubep/status.hpp"

namespace ubep {
namespace {

// Empty: no limit.
std::string soft_limit(decltype(RLIMIT_AS) resource, int shift = 0) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return std::to_string(limit.rlim_cur >> shift);
}

std::string first_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word.empty() ? "?" : word;
}

std::string explain_memory() {
  const std::string most = soft_limit(RLIMIT_AS, 20);
  if (!most.empty()) {
    return fmt::format(
        "this process may have {} MiB of address space (ulimit -v): raise it, or "
        "lower max_tokens, max_topk or slots",
        most);
  }
  return fmt::format(
      "the system has no more to give (memory, its overcommit, or {} mappings of "
      "one process, /proc/sys/vm/max_map_count): lower max_tokens, max_topk or slots",
      first_word("/proc/sys/vm/max_map_count"));
}

}  // namespace

std::string explain(int error) {
  switch (error) {
    case EMFILE:
      return fmt::format(
          "too many open files: this process may have {} (ulimit -n), and holds up "
          "to three for each rank: raise it",
          soft_limit(RLIMIT_NOFILE));
    case ENFILE:
      return fmt::format(
          "too many open files on this machine, which may have {} "
          "(/proc/sys/fs/file-max): raise it",
          first_word("/proc/sys/fs/file-max"));
    case ENOMEM:
      return fmt::format("{}: {}", std::strerror(error), explain_memory());
    default:
      return std::strerror(error);
  }
}

std::string explain_fork(int error) {
  if (error != EAGAIN) return explain(error);
  const std::string most = soft_limit(RLIMIT_NPROC);
  return fmt::format(
      "{}: {} (ulimit -u), and its control group what pids.max says: raise it, or "
      "take fewer ranks",
      std::strerror(error),
      most.empty() ? "this user has no limit of processes"
                   : fmt::format("this user may have {} processes and threads", most));
}

void check_address_space(std::uint64_t bytes) {
  if (bytes == 0 || soft_limit(RLIMIT_AS).empty()) return;
  void* all = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all != MAP_FAILED) {
    munmap(all, bytes);
    return;
  }
  throw Error(ErrorCode::setup, fmt::format("cannot reserve {} MiB of address space: {}",
                                            bytes >> 20, explain(errno)));
}

SpareFiles::SpareFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  before_ = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) before_ = 0;
}

SpareFiles::~SpareFiles() {
  rlimit limit = {};
  if (before_ == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = before_;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace ubep
