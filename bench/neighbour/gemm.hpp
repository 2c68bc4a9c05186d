// A plain fp32 matrix product: what an inference engine's threads do when they do not exchange.
#pragma once

#include <cstddef>
#include <vector>

namespace ubep::bench {

// c [rows, kSize] = a [rows, kSize] x b [kSize, kSize]. b fits a core's second cache.
class Gemm {
 public:
  static constexpr std::size_t kSize = 256;

  explicit Gemm(std::size_t rows);
  // The part of thread `part` of `parts`.
  void run(int part, int parts);

 private:
  std::size_t rows_;
  std::vector<float> a_;
  std::vector<float> b_;
  std::vector<float> c_;
};

}  // namespace ubep::bench
