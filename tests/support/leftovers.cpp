#include "support/leftovers.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace ubep::test {

Holdings holdings() {
  Holdings h;
  const std::filesystem::directory_iterator files("/proc/self/fd");
  h.descriptors = static_cast<int>(std::distance(begin(files), end(files)));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:ubep") != std::string::npos) ++h.memory_files;
  }
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (std::string pid; children >> pid;) ++h.children;
  }
  return h;
}

std::int64_t status_line(const char* name) {
  std::ifstream status("/proc/self/status");
  const std::string start = std::string(name) + ":";
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(start, 0) == 0) return std::stoll(line.substr(start.size()));
  }
  return -1;
}

}  // namespace ubep::test
