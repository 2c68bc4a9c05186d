#include "memory/row_kernels.hpp"

#include <algorithm>

#include "memory/copy.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/row_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

#include "memory/float_vectors_impl.hpp"

HWY_BEFORE_NAMESPACE();
namespace ubep::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One vector of the sum at element `at`.
template <class T, class D>
hn::Vec<D> sum_at(D d, const RowSum& sum, std::size_t at) {
  const auto row = [&](std::size_t i) {
    return T::load(d, reinterpret_cast<const typename T::Element*>(sum.rows[i]) + at);
  };
  auto total = hn::Zero(d);
  auto partial = hn::Zero(d);
  for (std::size_t i = 0; i < sum.rows.size(); ++i) {
    auto term = row(i);
    if (sum.weights != nullptr) term = hn::Mul(hn::Set(d, sum.weights[i]), term);
    partial = hn::Add(partial, term);
    if (sum.group_end != nullptr && sum.group_end[i] != 0) {
      total = hn::Add(total, partial);
      partial = hn::Zero(d);
    }
  }
  return sum.group_end != nullptr ? total : partial;
}

template <bool kWeighted, class V>
HWY_INLINE V term(V weight, V value) {
  return kWeighted ? hn::Mul(weight, value) : value;
}

// Eight vectors of the sum from element `at` on: additions that need not wait for one another, in
// as many registers as AVX2 has.
template <class T, bool kWeighted, class D>
HWY_INLINE void sum_wide(D d, const RowSum& sum, std::size_t at, typename T::Element* to) {
  const std::size_t pair = 2 * hn::Lanes(d);
  auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  auto b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  const std::size_t count = sum.rows.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto* row = reinterpret_cast<const typename T::Element*>(sum.rows[i]) + at;
    const auto w = hn::Set(d, kWeighted ? sum.weights[i] : 1.0F);
    a0 = hn::Add(a0, term<kWeighted>(w, Pairs<T>::first(d, row)));
    b0 = hn::Add(b0, term<kWeighted>(w, Pairs<T>::second(d, row)));
    a1 = hn::Add(a1, term<kWeighted>(w, Pairs<T>::first(d, row + pair)));
    b1 = hn::Add(b1, term<kWeighted>(w, Pairs<T>::second(d, row + pair)));
    a2 = hn::Add(a2, term<kWeighted>(w, Pairs<T>::first(d, row + 2 * pair)));
    b2 = hn::Add(b2, term<kWeighted>(w, Pairs<T>::second(d, row + 2 * pair)));
    a3 = hn::Add(a3, term<kWeighted>(w, Pairs<T>::first(d, row + 3 * pair)));
    b3 = hn::Add(b3, term<kWeighted>(w, Pairs<T>::second(d, row + 3 * pair)));
  }
  // One NaN among them, or two infinities, and their sum is none: rare, and handled apart.
  const auto sums =
      hn::Add(hn::Add(hn::Add(a0, b0), hn::Add(a1, b1)), hn::Add(hn::Add(a2, b2), hn::Add(a3, b3)));
  if (HWY_UNLIKELY(!hn::AllFalse(d, hn::IsNaN(sums)))) {
    Pairs<T>::store(d, a0, b0, to);
    Pairs<T>::store(d, a1, b1, to + pair);
    Pairs<T>::store(d, a2, b2, to + 2 * pair);
    Pairs<T>::store(d, a3, b3, to + 3 * pair);
    return;
  }
  Pairs<T>::store_numbers(d, a0, b0, to);
  Pairs<T>::store_numbers(d, a1, b1, to + pair);
  Pairs<T>::store_numbers(d, a2, b2, to + 2 * pair);
  Pairs<T>::store_numbers(d, a3, b3, to + 3 * pair);
}

// Elements [begin, end) of the sum to out[0..].
template <class T>
void sum_span(const RowSum& sum, std::size_t begin, std::size_t end, std::byte* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const std::size_t lanes = hn::Lanes(d);
  auto* to = reinterpret_cast<typename T::Element*>(out) - begin;
  std::size_t at = begin;
  if (sum.group_end == nullptr && sum.weights != nullptr) {
    for (; at + 8 * lanes <= end; at += 8 * lanes) sum_wide<T, true>(d, sum, at, to + at);
  } else if (sum.group_end == nullptr) {
    for (; at + 8 * lanes <= end; at += 8 * lanes) sum_wide<T, false>(d, sum, at, to + at);
  }
  for (; at + lanes <= end; at += lanes) T::store(d, sum_at<T>(d, sum, at), to + at);
  for (; at < end; ++at) T::store(one, sum_at<T>(one, sum, at), to + at);
}

void sum_block(const RowSum& sum, std::size_t begin, std::size_t end, std::byte* out) {
  switch (sum.dtype) {
    case DType::bf16:
      return sum_span<Bf16>(sum, begin, end, out);
    case DType::fp16:
      return sum_span<Fp16>(sum, begin, end, out);
    case DType::fp32:
      return sum_span<Fp32>(sum, begin, end, out);
    case DType::u8:
      return;  // never outputs
  }
}

}  // namespace ubep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ubep {
HWY_EXPORT(sum_block);

void sum_rows(const RowSum& sum, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(sum_block)(sum, 0, sum.hidden, out);
}

void sum_rows_streaming(const RowSum& sum, std::byte* out) {
  constexpr std::size_t kBlock = 1024;  // elements: the block stays in L1
  alignas(64) std::byte block[kBlock * sizeof(float)];
  for (std::size_t begin = 0; begin < sum.hidden; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, sum.hidden);
    HWY_DYNAMIC_DISPATCH(sum_block)(sum, begin, end, block);
    copy_streaming(out + begin * size_of(sum.dtype), block, (end - begin) * size_of(sum.dtype));
  }
}

}  // namespace ubep
#endif
