// The files of pods/, as they were when the library was built.
#pragma once

#include <span>
#include <string_view>

namespace ubep::sim {

struct BuiltInPod {
  std::string_view name;  // of its file, without .json
  std::string_view text;
};

std::span<const BuiltInPod> built_in_pods();  // by name; src/sim/CMakeLists.txt writes them

}  // namespace ubep::sim
