// Quantised rows outside a dispatch: what DispatchOptions::quant makes of a row, and back. For
// experts that compute in another dtype, for callers that quantise their rows themselves, for
// tests.
//
// All functions take any `hidden` from 1 on; no pointer needs an alignment. The formats, and what
// becomes of NaN and infinity: types.hpp, Quant. Throw Error{invalid_argument}: Quant::none,
// DType::u8.
#pragma once

#include <cstdint>

#include "ubep/dispatch.hpp"
#include "ubep/export.hpp"
#include "ubep/types.hpp"

namespace ubep {

// Bytes of a quantised row: values, then scales. And where its scales lie.
UBEP_API std::int64_t quantized_row_bytes(Quant quant, std::int64_t hidden);
UBEP_API ScalePlace scale_place(Quant quant, std::int64_t hidden);

// x [hidden] of `dtype` to out [quantized_row_bytes()].
UBEP_API void quantize_row(Quant quant, const void* x, DType dtype, std::int64_t hidden, void* out);
// A quantised row to out [hidden] of `dtype`: one fp32 product for each element, rounded once.
UBEP_API void dequantize_row(Quant quant, const void* row, DType dtype, std::int64_t hidden,
                             void* out);

// Where scales go: block b of row i to data + i * row_stride + b * block_stride, in bytes.
// Row-major: block_stride is the size of a scale; column-major, as GEMM kernels read them:
// row_stride is.
struct ScaleMatrix {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t block_stride = 0;
};
// Scales of the received rows first .. first + count - 1; row `first` is row 0 of `to`.
UBEP_API void copy_scales(const Received& received, std::int64_t first, std::int64_t count,
                          const ScaleMatrix& to);

}  // namespace ubep
