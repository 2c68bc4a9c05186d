#include <fmt/format.h>
#include <hwy/highway.h>

#include <cstdint>
#include <string_view>

#include "ubep/version.hpp"

namespace ubep {

extern const char* const kCommit;  // in a file that the build writes, see cmake/UbepCommit.cmake

static_assert(std::string_view(kVersion) == UBEP_PROJECT_VERSION,
              "version.hpp and CMakeLists.txt name different versions");

namespace {

// Highway's names, best first: lower bits stand for better instruction sets.
std::string target_names(std::int64_t targets) {
  std::string names;
  for (; targets != 0; targets &= targets - 1) {
    names += fmt::format(" {}", hwy::TargetName(targets & -targets));
  }
  return names;
}

}  // namespace

std::string build_facts() {
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return fmt::format(
      "ubep {}, wire {}, commit {}\n"
      "compiler {}, build {}, sanitizers {}\n"
      "Highway {}.{}.{}, built for{}, here{}",
      kVersion, kWireVersion, kCommit, UBEP_COMPILER, UBEP_BUILD_TYPE, UBEP_SANITIZERS, HWY_MAJOR,
      HWY_MINOR, HWY_PATCH, target_names(HWY_TARGETS), target_names(usable & -usable));
}

}  // namespace ubep
