// Quantised rows: from bf16, fp16 or fp32 to the formats of `Quant`, and back.
//
// The same bytes on every machine: no fused multiply-add, no approximate reciprocal, conversions by
// integer code and single roundings of our own. The thread rounds to nearest and does not flush
// subnormals. Pointers need no alignment unless that is said. Not for `Quant::none`: that is a
// copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ubep/types.hpp"

namespace ubep {

// Where the parts of an encoded row lie: values at 0, one byte per column; then scales, fp32 ones
// from a multiple of 4 on, with zero bytes before them. Integers and floats are little-endian.
struct RowFormat {
  std::size_t scale_block = 0;   // columns per scale; int8: all of them
  std::size_t num_scales = 0;    // ceil(hidden / scale_block)
  std::size_t scale_bytes = 0;   // of one scale: 4 (fp32) or 1 (e8m0)
  std::size_t scale_offset = 0;  // of the first scale, in bytes from the row's beginning

  // Of a row of `hidden` columns, at least 1. Not for `none`, of which all is 0.
  static constexpr RowFormat of(Quant quant, std::size_t hidden);
  // Of the whole row.
  constexpr std::size_t bytes() const { return scale_offset + num_scales * scale_bytes; }
};

constexpr RowFormat RowFormat::of(Quant quant, std::size_t hidden) {
  if (quant == Quant::none) return {};
  RowFormat format{.scale_block = 128, .num_scales = 1, .scale_bytes = 4, .scale_offset = hidden};
  if (quant == Quant::int8) format.scale_block = hidden;
  if (quant == Quant::mxfp8) format.scale_block = 32;
  if (quant == Quant::mxfp8 || quant == Quant::fp8_ue8m0) format.scale_bytes = 1;
  format.num_scales = (hidden + format.scale_block - 1) / format.scale_block;
  if (format.scale_bytes == 4) format.scale_offset = (hidden + 3) / 4 * 4;
  return format;
}

// A row that is to be encoded: x [hidden] of `dtype`.
struct RowSource {
  const std::byte* x = nullptr;
  std::size_t hidden = 0;
  DType dtype = DType::bf16;
};

// out [RowFormat::of(quant, row.hidden).bytes()], which does not overlap x. Plain stores.
void encode_row(Quant quant, const RowSource& row, std::byte* out);

// The same bytes with non-temporal stores: `out` as for copy_streaming(), and store_fence() before
// the flag. A row of more than 4096 bytes of scales (over 131,072 columns) takes plain stores.
void encode_row_streaming(Quant quant, const RowSource& row, std::byte* out);

inline void encode_row_with(Store store, Quant quant, const RowSource& row, std::byte* out) {
  store == Store::far ? encode_row_streaming(quant, row, out) : encode_row(quant, row, out);
}

// An encoded row of `hidden` columns to out [hidden] of `target`, which does not overlap it: fp32
// value * scale, rounded to nearest even. Any bytes decode: a value or an e8m0 scale that is NaN to
// NaN.
void decode_row(Quant quant, const std::byte* row, std::size_t hidden, DType target,
                std::byte* out);

}  // namespace ubep
