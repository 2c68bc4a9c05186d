// A tracer that adds up what each lane's time went to.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "ubep/trace.hpp"

namespace ubep::python {

class LaneClock final : public Tracer {
 public:
  static constexpr int kLanes = 64;

  void charge(int lane, Activity activity) override {
    Lane& at = lanes_[static_cast<std::size_t>(lane)];
    const auto now = std::chrono::steady_clock::now();
    const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(now - at.last).count();
    at.last = now;
    at.ns[static_cast<std::size_t>(activity)] += static_cast<std::uint64_t>(spent);
  }

  void reset() {
    for (Lane& lane : lanes_) lane = {{}, std::chrono::steady_clock::now()};
  }

  const std::array<std::uint64_t, kActivities>& times(int lane) const {
    return lanes_[static_cast<std::size_t>(lane)].ns;
  }

 private:
  struct alignas(64) Lane {
    std::array<std::uint64_t, kActivities> ns{};
    std::chrono::steady_clock::time_point last;
  };
  std::array<Lane, kLanes> lanes_{};
};

}  // namespace ubep::python
