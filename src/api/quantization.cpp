#include "ubep/quantization.hpp"

#include <fmt/format.h>

#include <cstring>

#include "memory/row_codec.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr std::int64_t kMostHidden = 1 << 24;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, text);
}

RowFormat format_of(Quant quant, std::int64_t hidden) {
  if (quant == Quant::none || quant > Quant::mxfp8) {
    refuse(fmt::format("quant is {}, expected fp8 to mxfp8", name(quant)));
  }
  if (hidden < 1 || hidden > kMostHidden) {
    refuse(fmt::format("hidden is {}, expected 1..{}", hidden, kMostHidden));
  }
  return RowFormat::of(quant, static_cast<std::size_t>(hidden));
}

void check_pointers(const void* from, const void* to) {
  if (from == nullptr || to == nullptr) refuse("a row is null, expected an address");
}

void check_dtype(DType dtype) {
  if (dtype <= DType::fp32) return;
  refuse(fmt::format("dtype is {}, expected bf16, fp16 or fp32", name(dtype)));
}

}  // namespace

std::int64_t quantized_row_bytes(Quant quant, std::int64_t hidden) {
  return static_cast<std::int64_t>(format_of(quant, hidden).bytes());
}

ScalePlace scale_place(Quant quant, std::int64_t hidden) {
  const RowFormat format = format_of(quant, hidden);
  return {.offset = static_cast<std::int64_t>(format.scale_offset),
          .count = static_cast<std::int64_t>(format.num_scales),
          .bytes = static_cast<std::int64_t>(format.scale_bytes),
          .block = static_cast<std::int64_t>(format.scale_block)};
}

void quantize_row(Quant quant, const void* x, DType dtype, std::int64_t hidden, void* out) {
  (void)format_of(quant, hidden);
  check_dtype(dtype);
  check_pointers(x, out);
  encode_row(quant, {static_cast<const std::byte*>(x), static_cast<std::size_t>(hidden), dtype},
             static_cast<std::byte*>(out));
}

void dequantize_row(Quant quant, const void* row, DType dtype, std::int64_t hidden, void* out) {
  (void)format_of(quant, hidden);
  check_dtype(dtype);
  check_pointers(row, out);
  decode_row(quant, static_cast<const std::byte*>(row), static_cast<std::size_t>(hidden), dtype,
             static_cast<std::byte*>(out));
}

void copy_scales(const Received& received, std::int64_t first, std::int64_t count,
                 const ScaleMatrix& to) {
  if (received.quant == Quant::none) refuse("the received rows have no scales: quant is none");
  if (first < 0 || count < 0 || count > received.num_rows || first > received.num_rows - count) {
    refuse(fmt::format("first is {}, count is {}, expected rows of {} received ones", first, count,
                       received.num_rows));
  }
  if (to.data == nullptr && count > 0) refuse("to.data is null, expected an address");
  const ScalePlace& scales = received.scales;
  const auto bytes = static_cast<std::size_t>(scales.bytes);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::byte* from = received.row(first + i) + scales.offset;
    auto* row = static_cast<std::byte*>(to.data) + i * to.row_stride;
    for (std::int64_t b = 0; b < scales.count; ++b) {
      std::memcpy(row + b * to.block_stride, from + b * scales.bytes, bytes);
    }
  }
}

}  // namespace ubep
