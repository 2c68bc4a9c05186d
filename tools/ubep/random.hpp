// Random numbers that are the same on every platform and compiler.
//
// Purpose: seeded benchmark inputs that anyone can repeat (the distributions of <random> differ
// between standard libraries). SplitMix64: 64 bits of state, one add and two multiplies a number.
// Not for: secrets, or simulations that need more than 2^64 numbers.
//
//   Random random(seed, {set, rank});      // an own stream per set and rank
//   std::uint32_t expert = random.below(num_experts);
#pragma once

#include <cstdint>
#include <initializer_list>

namespace ubep::tools {

class Random {
 public:
  // A stream of `seed`; each further number of `stream` selects another, unrelated stream.
  explicit Random(std::uint64_t seed, std::initializer_list<std::uint64_t> stream = {})
      : state_(seed) {
    for (const std::uint64_t number : stream) state_ = next() ^ number;
    state_ = next();
  }

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }

  // An integer of 0..bound-1 (bound > 0), uniform up to bound / 2^32.
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(((next() >> 32U) * bound) >> 32U);
  }

  // A double of [0, 1) with 53 random bits.
  double unit() { return static_cast<double>(next() >> 11U) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace ubep::tools
