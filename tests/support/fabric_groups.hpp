// The fabrics that the conformance suite runs on: each entry makes all ranks of a group at once.
//
// To add a fabric: a class with `Fabric`, a constructor from segment sizes and rank(), and its name
// in FabricGroups.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/shm/fabric.hpp"
#include "support/staged_fabric.hpp"

namespace ubep::test {

// Ranks are threads of this process.
class ShmGroup {
 public:
  using Fabric = ShmFabric;
  static constexpr const char* kName = "shm";

  explicit ShmGroup(const std::vector<std::uint64_t>& segment_bytes);
  Fabric& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }

 private:
  std::vector<std::unique_ptr<ShmFabric>> ranks_;
};

class StagedGroup {
 public:
  using Fabric = StagedFabric;
  static constexpr const char* kName = "staged";

  explicit StagedGroup(const std::vector<std::uint64_t>& segment_bytes)
      : world_({.segment_bytes = segment_bytes, .seed = 1}) {}
  Fabric& rank(int r) { return world_.rank(r); }

 private:
  StagedWorld world_;
};

using FabricGroups = testing::Types<ShmGroup, StagedGroup>;

struct GroupName {
  template <class Group>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest asks for it
    return Group::kName;
  }
};

}  // namespace ubep::test
