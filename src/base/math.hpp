// Checked integer arithmetic for sizes and offsets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ubep/status.hpp"

namespace ubep {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kPageBytes = 4096;

// Product and sum that throw Error{invalid_argument} instead of wrapping.
inline std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(ErrorCode::invalid_argument, "size overflows 64 bits");
  }
  return product;
}

inline std::uint64_t checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(ErrorCode::invalid_argument, "size overflows 64 bits");
  }
  return sum;
}

inline std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return checked_add(value, multiple - 1) / multiple * multiple;
}

}  // namespace ubep
