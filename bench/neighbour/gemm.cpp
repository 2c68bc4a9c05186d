#include "bench/neighbour/gemm.hpp"

#include <algorithm>

namespace ubep::bench {
namespace {

constexpr std::size_t kRows = 4;   // of a block of c that is summed at once,
constexpr std::size_t kCols = 16;  //   in registers

}  // namespace

Gemm::Gemm(std::size_t rows)
    : rows_(rows), a_(rows * kSize, 0.5F), b_(kSize * kSize, 0.25F), c_(rows * kSize) {}

void Gemm::run(int part, int parts) {
  const std::size_t blocks = rows_ / kRows;
  const std::size_t first =
      blocks * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
  const std::size_t end =
      blocks * static_cast<std::size_t>(part + 1) / static_cast<std::size_t>(parts);
  for (std::size_t row = first * kRows; row < end * kRows; row += kRows) {
    for (std::size_t col = 0; col < kSize; col += kCols) {
      float sum[kRows][kCols] = {};
      for (std::size_t k = 0; k < kSize; ++k) {
        const float* b = &b_[k * kSize + col];
        for (std::size_t i = 0; i < kRows; ++i) {
          const float a = a_[(row + i) * kSize + k];
          for (std::size_t j = 0; j < kCols; ++j) sum[i][j] += a * b[j];
        }
      }
      for (std::size_t i = 0; i < kRows; ++i) {
        std::copy(sum[i], sum[i] + kCols, &c_[(row + i) * kSize + col]);
      }
    }
  }
}

}  // namespace ubep::bench
