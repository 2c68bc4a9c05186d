// The local floor: a layer's copies and sums in private memory, without a second rank. Every rank
// plays all owners of its own tokens, so with even routing it does what a rank of the others does.
#pragma once

#include "bench/rivals/rows.hpp"
#include "bench/rivals/way.hpp"

namespace ubep::rivals {

class FloorWay final : public Way {
 public:
  // `store`: of copied rows, and of the partial sums of rank_major.
  FloorWay(const Group& group, const Shape& shape, Layout layout, Store store);

  Rows input() override { return x_.view(tokens_); }
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override;
  void combine(const Rows& out) override;

 private:
  struct Row {  // a copied row of rank_major
    std::uint32_t token;
    std::uint32_t first;  // of its choices in scratch_
    std::uint32_t count;
  };
  void copy_choices(const tools::RankRouting& routing);
  void copy_tokens(const tools::RankRouting& routing);

  Shape shape_;
  Layout layout_;
  Store store_;
  int tokens_;
  std::size_t topk_;
  std::size_t row_bytes_;
  Matrix x_;
  Matrix rows_;
  Matrix outputs_;
  Matrix sums_;
  std::vector<float> scale_;           // [E]
  std::vector<std::uint32_t> off_;     // [E + 1] choices of each expert
  std::vector<std::uint32_t> next_;    // [E]
  std::vector<std::uint32_t> source_;  // [choices] copied row that the expert reads
  std::vector<std::uint32_t> place_;   // [tokens, topk] in the experts' order
  std::vector<std::uint32_t> row_of_;  // [tokens, ranks] copied row
  std::size_t num_rows_ = 0;
  const tools::RankRouting* routing_ = nullptr;
};

}  // namespace ubep::rivals
