// Random numbers of a simulated world: SplitMix64, the same from one seed on every platform.
#pragma once

#include <cstdint>

namespace ubep::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::uint64_t up_to(std::uint64_t most) { return most == 0 ? 0 : next() % (most + 1); }
  bool one_in(std::uint64_t n) { return next() % n == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace ubep::sim
