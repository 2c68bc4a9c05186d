#include "fabric/ucx/host.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace ubep {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint64_t inode(const char* path) {
  struct stat file = {};
  return stat(path, &file) == 0 ? file.st_ino : 0;
}

}  // namespace

std::string host_id() {
  if (const char* given = std::getenv("UBEP_HOST_ID"); given != nullptr && *given != 0) {
    return std::string(given, std::strcspn(given, "\n"));  // others take it as one line
  }
  return fmt::format("{}/{}/{}/{}", first_line("/proc/sys/kernel/random/boot_id"),
                     inode("/proc/self/ns/net"), inode("/proc/self/ns/pid"), getuid());
}

std::string host_name() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

}  // namespace ubep
