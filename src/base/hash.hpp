// A small mixing function for fingerprints that ranks compare. Not for secrets.
#pragma once

#include <cstdint>

namespace ubep {

constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15U + (hash << 6) + (hash >> 2);
  hash *= 0xFF51AFD7ED558CCDU;
  return hash ^ (hash >> 32);
}

}  // namespace ubep
