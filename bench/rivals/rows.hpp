// Rows that every way has: private matrices, and the local expert's rows of token-major tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/rivals/group.hpp"
#include "memory/copy.hpp"
#include "memory/private_rows.hpp"
#include "memory/row_kernels.hpp"
#include "ubep/types.hpp"

namespace ubep::rivals {

// A private matrix of bf16 rows, in the kind of memory that the library keeps its own in.
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::size_t rows, std::size_t row_bytes)
      : row_bytes_(row_bytes), rows_((rows > 0 ? rows : 1) * row_bytes) {}

  std::byte* row(std::size_t i) const { return rows_.data() + i * row_bytes_; }
  std::byte* data() const { return rows_.data(); }
  Rows view(std::int64_t rows) const {
    return {data(), rows, static_cast<std::int64_t>(row_bytes_ / 2), DType::bf16, 0};
  }

 private:
  std::size_t row_bytes_ = 0;
  PrivateRows rows_;
};

// An expert: out = scale x row, exact for powers of two, at the speed of memory. It reads the row
// and writes another, as a matrix product would, and streams no weights: what a layer costs beside
// the experts shows as it is.
void run_expert(float scale, const std::byte* row, std::size_t hidden, std::byte* out);

// The rows of a token-major tensor that local experts need: grouped by expert for the kernels, and
// by row for the weighted sums.
class LocalRows {
 public:
  LocalRows(const Shape& shape, int rank);

  void clear();
  // A row and its top-k choices. Returns its index.
  std::size_t add(const std::byte* row, const std::int32_t* topk_idx, const float* topk_weights);
  void group();  // once all rows are added
  void run_experts(const Matrix& scratch) const;
  // The weighted sum of row i's outputs, in k order; zeros when no expert here is chosen.
  void sum(Store store, std::size_t i, const Matrix& scratch, std::byte* out) const;
  std::size_t size() const { return rows_.size(); }

 private:
  struct Choice {
    std::uint32_t row;
    std::uint32_t expert;  // local
  };
  std::size_t hidden_;
  std::size_t topk_;
  std::vector<std::int32_t> local_;  // [E] local id, or -1
  std::vector<float> scale_;         // [Le]
  std::vector<const std::byte*> rows_;
  std::vector<std::uint32_t> first_choice_;  // [rows + 1]
  std::vector<Choice> choices_;
  std::vector<float> weights_;
  std::vector<std::uint32_t> offsets_;    // [Le + 1]
  std::vector<std::uint32_t> next_;       // [Le]
  std::vector<std::uint32_t> place_;      // [choices] its output row
  std::vector<std::uint32_t> by_expert_;  // [choices] row, in the order of the outputs
};

}  // namespace ubep::rivals
