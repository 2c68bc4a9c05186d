// Pods for tests of the simulator.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "sim/pod.hpp"

namespace ubep::sim {

// pods/generic.json of this tree.
inline std::string generic_pod() {
  const std::filesystem::path here = __FILE__;
  return (here.parent_path() / "../../../pods/generic.json").lexically_normal().string();
}

}  // namespace ubep::sim
