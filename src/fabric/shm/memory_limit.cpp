#include "fabric/shm/memory_limit.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr auto kUnknown = std::numeric_limits<std::uint64_t>::max();

std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kUnknown;  // "max" is no number: unlimited
}

std::uint64_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string rest;
  while (file >> key >> kib && std::getline(file, rest)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kUnknown;
}

// Control groups version 2: the own group and all above it.
std::uint64_t cgroup_available() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::uint64_t least = kUnknown;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string group = line.substr(3);; group.resize(group.rfind('/'))) {
      const std::string folder = "/sys/fs/cgroup" + group;
      const std::uint64_t most = number_in(folder + "/memory.max");
      const std::uint64_t used = number_in(folder + "/memory.current");
      if (most != kUnknown && used != kUnknown) {
        least = std::min(least, most - std::min(most, used));
      }
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace

std::uint64_t available_memory_bytes() { return std::min(meminfo_available(), cgroup_available()); }

void check_file_size(std::uint64_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (bytes <= limit.rlim_cur) return;
  throw Error(ErrorCode::setup,
              fmt::format("shared memory of {} MiB is beyond the file size that this process may "
                          "have, {} MiB (ulimit -f)",
                          bytes >> 20, limit.rlim_cur >> 20));
}

}  // namespace ubep
