// Copies and sums of rows: bytes read per second from each level of the memory.
#include <benchmark/benchmark.h>

#include <vector>

#include "memory/copy.hpp"
#include "memory/row_kernels.hpp"

namespace ubep {
namespace {

constexpr std::size_t kHidden = 7168;
constexpr std::size_t kRowBytes = kHidden * 2;

// `rows` rows, summed `topk` at a time: range(0) = topk, range(1) = rows.
template <void (*kSum)(const RowSum&, std::byte*), bool kWeighted>
void sum(benchmark::State& state) {
  const auto topk = static_cast<std::size_t>(state.range(0));
  const auto rows = static_cast<std::size_t>(state.range(1));
  std::vector<std::byte> area((rows + 2) * kRowBytes, std::byte{0x3f});
  const std::vector<float> weights(topk, 0.125F);
  std::vector<const std::byte*> terms(topk);
  std::byte* out = area.data() + 64 - reinterpret_cast<std::uintptr_t>(area.data()) % 64;
  std::byte* in = out + kRowBytes;
  for (auto _ : state) {
    for (std::size_t first = 0; first + topk <= rows; first += topk) {
      for (std::size_t k = 0; k < topk; ++k) terms[k] = in + (first + k) * kRowBytes;
      kSum({.rows = terms, .weights = kWeighted ? weights.data() : nullptr, .hidden = kHidden},
           out);
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(rows * kRowBytes));
}
BENCHMARK(sum<sum_rows, true>)->Args({8, 16})->Args({8, 512})->Args({1, 16})->Args({8, 16384});
BENCHMARK(sum<sum_rows, false>)->Args({2, 16})->Args({2, 512});
BENCHMARK(sum<sum_rows_streaming, true>)->Args({4, 16})->Args({4, 512});

template <void (*kCopy)(std::byte*, const std::byte*, std::size_t)>
void copy(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> area((2 * rows + 1) * kRowBytes);
  std::byte* in = area.data() + 64 - reinterpret_cast<std::uintptr_t>(area.data()) % 64;
  for (auto _ : state) {
    for (std::size_t i = 0; i < rows; ++i) {
      kCopy(in + (rows + i) * kRowBytes, in + i * kRowBytes, kRowBytes);
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(rows * kRowBytes));
}
BENCHMARK(copy<copy_plain>)->Arg(8)->Arg(256)->Arg(8192);
BENCHMARK(copy<copy_streaming>)->Arg(8)->Arg(256)->Arg(8192);

}  // namespace
}  // namespace ubep
