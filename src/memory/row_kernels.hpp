// Sums of rows: fp32 multiply then add, from +0, in the order given, one round-to-nearest-even.
//
// The same bits on every machine: no fused multiply-add, and 16-bit floats are converted by code of
// our own rather than by instructions that some machines lack. The caller's thread must not flush
// subnormals to zero. Not for anything but whole rows of one dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ubep/types.hpp"

namespace ubep {

struct RowSum {
  std::span<const std::byte* const> rows;
  const float* weights = nullptr;           // one per row, or none: a plain sum
  const std::uint8_t* group_end = nullptr;  // one per row: 1 = last of a partial sum; or none
  std::size_t hidden = 0;
  DType dtype = DType::bf16;
};

// out [hidden], plain stores. No rows: +0.
void sum_rows(const RowSum& sum, std::byte* out);

// The same with non-temporal stores: as copy_streaming(), and store_fence() before the flag.
void sum_rows_streaming(const RowSum& sum, std::byte* out);

inline void sum_rows_with(Store store, const RowSum& sum, std::byte* out) {
  store == Store::far ? sum_rows_streaming(sum, out) : sum_rows(sum, out);
}

}  // namespace ubep
