// The fabrics that the conformance suite runs on: each entry makes all ranks of a group at once.
//
// Inboxes are as large as segments.
//
// To add a fabric: a class with `Fabric`, a constructor from segment sizes, rank() and run(), and
// its name in FabricGroups.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabric/shm/fabric.hpp"
#include "fabric/ucx/fabric.hpp"
#ifdef UBEP_HAVE_SIM
#include "sim/world.hpp"
#endif

namespace ubep::test {

// Ranks are threads of this process.
class ShmGroup {
 public:
  using Fabric = ShmFabric;
  static constexpr const char* kName = "shm";

  explicit ShmGroup(const std::vector<std::uint64_t>& segment_bytes);
  Fabric& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }
  // Calls body(rank) for all ranks at once, and returns when they have ended.
  void run(const std::function<void(int)>& body);

 private:
  std::vector<std::unique_ptr<ShmFabric>> ranks_;
};

bool has_ucx();

// Ranks are threads of this process, each on a host of its own, as far as they know: UCX over
// loopback. Another thread moves transfers on all the time, as a rank in a call does.
class UcxGroup {
 public:
  using Fabric = UcxFabric;
  static constexpr const char* kName = "ucx";
  static bool is_here() { return has_ucx(); }

  explicit UcxGroup(const std::vector<std::uint64_t>& segment_bytes, std::uint64_t told_bytes = 0);
  ~UcxGroup();
  UcxGroup(const UcxGroup&) = delete;
  UcxGroup& operator=(const UcxGroup&) = delete;

  Fabric& rank(int r) { return *ranks_[static_cast<std::size_t>(r)].all; }
  void run(const std::function<void(int)>& body);
  // Between these nobody moves transfers on but the caller of progress().
  void pause() { help_ = false; }
  void resume() { help_ = true; }

 private:
  std::vector<UcxFabric::Joined> ranks_;
  std::atomic<bool> over_ = false;
  std::atomic<bool> help_ = true;
  std::thread helper_;
};

#ifdef UBEP_HAVE_SIM

// Ranks are fibers in virtual time. Calls outside of run() move that time on as well.
class SimGroup {
 public:
  using Fabric = sim::SimFabric;

  SimGroup(const std::vector<std::uint64_t>& segment_bytes, bool mapped, bool weak);
  Fabric& rank(int r) { return world_.fabric(r); }
  void run(const std::function<void(int)>& body);

 private:
  sim::World world_;
};

struct MappedGroup : SimGroup {
  static constexpr const char* kName = "mapped";
  explicit MappedGroup(const std::vector<std::uint64_t>& segment_bytes)
      : SimGroup(segment_bytes, true, false) {}
};

// Bytes appear late and in any order. So those behind an acquired pointer may change at each call
// of the fabric, until the flag that announces them.
struct WeakGroup : SimGroup {
  static constexpr const char* kName = "weak";
  explicit WeakGroup(const std::vector<std::uint64_t>& segment_bytes)
      : SimGroup(segment_bytes, true, true) {}
};

struct FetchedGroup : SimGroup {
  static constexpr const char* kName = "fetched";
  explicit FetchedGroup(const std::vector<std::uint64_t>& segment_bytes)
      : SimGroup(segment_bytes, false, true) {}
};

using FabricGroups = testing::Types<ShmGroup, UcxGroup, MappedGroup, WeakGroup, FetchedGroup>;

#else

using FabricGroups = testing::Types<ShmGroup, UcxGroup>;

#endif

struct GroupName {
  template <class Group>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest asks for it
    return Group::kName;
  }
};

}  // namespace ubep::test
