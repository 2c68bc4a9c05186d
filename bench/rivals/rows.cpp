#include "bench/rivals/rows.hpp"

#include <array>
#include <bit>

#include "tools/ubep/stand_in.hpp"

namespace ubep::rivals {
namespace {

// Even and odd elements are halves of a word; products are exact, so nothing is rounded.
[[gnu::always_inline]] inline void scale_row(float scale, const std::uint32_t* in,
                                             std::size_t words, std::uint32_t* out) {
  for (std::size_t i = 0; i < words; ++i) {
    const float even = scale * std::bit_cast<float>(in[i] << 16U);
    const float odd = scale * std::bit_cast<float>(in[i] & 0xFFFF0000U);
    out[i] = std::bit_cast<std::uint32_t>(even) >> 16U |
             (std::bit_cast<std::uint32_t>(odd) & 0xFFFF0000U);
  }
}

void scale_row_default(float scale, const std::uint32_t* in, std::size_t words,
                       std::uint32_t* out) {
  scale_row(scale, in, words, out);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void scale_row_avx2(float scale, const std::uint32_t* in, std::size_t words,
                                            std::uint32_t* out) {
  scale_row(scale, in, words, out);
}
#endif

using Kernel = void (*)(float, const std::uint32_t*, std::size_t, std::uint32_t*);

Kernel kernel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) return scale_row_avx2;
#endif
  return scale_row_default;
}

}  // namespace

void run_expert(float scale, const std::byte* row, std::size_t hidden, std::byte* out) {
  static const Kernel run = kernel();
  run(scale, reinterpret_cast<const std::uint32_t*>(row), hidden / 2,
      reinterpret_cast<std::uint32_t*>(out));
}

LocalRows::LocalRows(const Shape& shape, int rank)
    : hidden_(static_cast<std::size_t>(shape.hidden)),
      topk_(static_cast<std::size_t>(shape.topk)),
      local_(shape.expert_rank.size(), -1) {
  for (std::size_t e = 0; e < shape.expert_rank.size(); ++e) {
    if (shape.expert_rank[e] != rank) continue;
    local_[e] = static_cast<std::int32_t>(scale_.size());
    scale_.push_back(tools::expert_scale(static_cast<std::int32_t>(e)));
  }
  clear();
}

void LocalRows::clear() {
  rows_.clear();
  choices_.clear();
  weights_.clear();
  first_choice_.assign(1, 0);
}

std::size_t LocalRows::add(const std::byte* row, const std::int32_t* topk_idx,
                           const float* topk_weights) {
  for (std::size_t k = 0; k < topk_; ++k) {
    if (topk_idx[k] < 0) continue;
    const std::int32_t expert = local_[static_cast<std::size_t>(topk_idx[k])];
    if (expert < 0) continue;
    choices_.push_back(
        {static_cast<std::uint32_t>(rows_.size()), static_cast<std::uint32_t>(expert)});
    weights_.push_back(topk_weights[k]);
  }
  rows_.push_back(row);
  first_choice_.push_back(static_cast<std::uint32_t>(choices_.size()));
  return rows_.size() - 1;
}

void LocalRows::group() {
  offsets_.assign(scale_.size() + 1, 0);
  for (const Choice& choice : choices_) ++offsets_[choice.expert + 1];
  for (std::size_t e = 0; e < scale_.size(); ++e) offsets_[e + 1] += offsets_[e];
  next_.assign(offsets_.begin(), offsets_.end() - 1);
  place_.resize(choices_.size());
  by_expert_.resize(choices_.size());
  for (std::size_t c = 0; c < choices_.size(); ++c) {
    place_[c] = next_[choices_[c].expert]++;
    by_expert_[place_[c]] = choices_[c].row;
  }
}

void LocalRows::run_experts(const Matrix& scratch) const {
  for (std::size_t e = 0; e < scale_.size(); ++e) {
    for (std::uint32_t i = offsets_[e]; i < offsets_[e + 1]; ++i) {
      run_expert(scale_[e], rows_[by_expert_[i]], hidden_, scratch.row(i));
    }
  }
}

void LocalRows::sum(Store store, std::size_t i, const Matrix& scratch, std::byte* out) const {
  std::array<const std::byte*, 64> outputs;
  const std::uint32_t first = first_choice_[i];
  const std::uint32_t count = first_choice_[i + 1] - first;
  for (std::uint32_t c = 0; c < count; ++c) outputs[c] = scratch.row(place_[first + c]);
  sum_rows_with(store,
                {.rows = {outputs.data(), count},
                 .weights = weights_.data() + first,
                 .hidden = hidden_,
                 .dtype = DType::bf16},
                out);
}

}  // namespace ubep::rivals
