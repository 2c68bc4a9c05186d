// Quantised rows: bytes of the unencoded side per second, rows in the L2 cache.
#include <benchmark/benchmark.h>

#include <vector>

#include "memory/copy.hpp"
#include "memory/row_codec.hpp"

namespace ubep {
namespace {

constexpr std::size_t kHidden = 7168;
constexpr std::size_t kRows = 8;

// [kRows, kHidden] of bf16 patterns, or of such pairs as fp32: normal numbers of magnitudes
// 2^-8..8.
std::vector<std::byte> some_rows(DType dtype) {
  std::vector<std::byte> rows(kRows * kHidden * size_of(dtype));
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    state = state * 1664525 + 1013904223;
    rows[i] = static_cast<std::byte>(state >> 16);
    rows[i + 1] = static_cast<std::byte>((state >> 31 << 7) | (0x3C + (state >> 24 & 3)));
  }
  return rows;
}

template <Quant kQuant, DType kDType, Store kStore>
void encode(benchmark::State& state) {
  const std::size_t stride = RowFormat::of(kQuant, kHidden).bytes() / 64 * 64 + 64;
  const std::vector<std::byte> x = some_rows(kDType);
  std::vector<std::byte> area(kRows * stride + 64);
  std::byte* out = area.data() + 64 - reinterpret_cast<std::uintptr_t>(area.data()) % 64;
  for (auto _ : state) {
    for (std::size_t i = 0; i < kRows; ++i) {
      const std::byte* from = x.data() + i * kHidden * size_of(kDType);
      encode_row_with(kStore, kQuant, {from, kHidden, kDType}, out + i * stride);
    }
    store_fence();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(x.size()));
}
BENCHMARK(encode<Quant::fp8, DType::bf16, Store::near>);
BENCHMARK(encode<Quant::fp8, DType::bf16, Store::far>);
BENCHMARK(encode<Quant::fp8_pow2, DType::bf16, Store::near>);
BENCHMARK(encode<Quant::fp8_ue8m0, DType::bf16, Store::near>);
BENCHMARK(encode<Quant::int8, DType::bf16, Store::near>);
BENCHMARK(encode<Quant::mxfp8, DType::bf16, Store::near>);
BENCHMARK(encode<Quant::fp8, DType::fp16, Store::near>);
BENCHMARK(encode<Quant::fp8, DType::fp32, Store::near>);

template <Quant kQuant, DType kDType>
void decode(benchmark::State& state) {
  const std::size_t stride = RowFormat::of(kQuant, kHidden).bytes();
  const std::vector<std::byte> x = some_rows(DType::bf16);
  std::vector<std::byte> rows(kRows * stride);
  for (std::size_t i = 0; i < kRows; ++i) {
    encode_row(kQuant, {x.data() + i * kHidden * 2, kHidden, DType::bf16}, &rows[i * stride]);
  }
  std::vector<std::byte> out(kRows * kHidden * size_of(kDType));
  for (auto _ : state) {
    for (std::size_t i = 0; i < kRows; ++i) {
      decode_row(kQuant, &rows[i * stride], kHidden, kDType, &out[i * kHidden * size_of(kDType)]);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(out.size()));
}
BENCHMARK(decode<Quant::fp8, DType::bf16>);
BENCHMARK(decode<Quant::fp8, DType::fp32>);
BENCHMARK(decode<Quant::int8, DType::bf16>);
BENCHMARK(decode<Quant::mxfp8, DType::bf16>);

}  // namespace
}  // namespace ubep
