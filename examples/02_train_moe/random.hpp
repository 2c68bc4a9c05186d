// Numbers from a seed, the same on every machine and rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace train {

class Random {
 public:
  // Streams of one seed are told apart by further numbers.
  explicit Random(std::uint64_t seed, std::uint64_t a = 0, std::uint64_t b = 0)
      : state_(mix(mix(mix(seed) ^ a) ^ b)) {}

  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23F - 1; }  // [-1, 1)

  std::vector<float> uniform(std::size_t count, float most) {
    std::vector<float> values(count);
    for (float& value : values) value = most * uniform();
    return values;
  }

 private:
  static std::uint64_t mix(std::uint64_t z) {  // splitmix64
    z += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::uint64_t next() { return state_ = mix(state_); }

  std::uint64_t state_;
};

}  // namespace train
