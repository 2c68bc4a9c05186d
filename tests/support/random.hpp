// Random numbers of the tests: the same from one seed on every platform.
#pragma once

#include <cstdint>
#include <vector>

namespace ubep::test {

// SplitMix64. Streams of one seed are told apart by mixing further numbers in.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  Random(std::uint64_t seed, std::uint64_t a, std::uint64_t b) : state_(seed) {
    state_ = next() ^ a;
    state_ = next() ^ b;
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

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

 private:
  std::uint64_t state_;
};

}  // namespace ubep::test
