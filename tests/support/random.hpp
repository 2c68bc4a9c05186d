// Random numbers of the tests: the same from one seed on every platform.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/random.hpp"

namespace ubep::test {

// Streams of one seed are told apart by mixing further numbers in.
class Random : public sim::Random {
 public:
  explicit Random(std::uint64_t seed) : sim::Random(seed) {}
  Random(std::uint64_t seed, std::uint64_t a, std::uint64_t b)
      : sim::Random(sim::Random(sim::Random(seed).next() ^ a).next() ^ b) {}

  int below(int limit) {  // 0..limit-1
    return static_cast<int>(next() % static_cast<std::uint64_t>(limit));
  }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int n) { return below(n) == 0; }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24F; }  // [0, 1)

  template <class T>
  T pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }
};

}  // namespace ubep::test
