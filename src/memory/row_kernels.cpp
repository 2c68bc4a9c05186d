#include "memory/row_kernels.hpp"

#include <algorithm>

#include "memory/copy.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/row_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ubep::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Bits = hn::RebindToUnsigned<D>;
template <class D>
using Half = hn::Rebind<std::uint16_t, D>;

// Loads and stores of one vector of floats from elements of each dtype.
struct Fp32 {
  using Element = float;
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static void store([[maybe_unused]] D d, hn::Vec<D> v, Element* to) {
    hn::StoreU(v, d, to);
  }
};

struct Bf16 {
  using Element = std::uint16_t;
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    const Bits<D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(Half<D>(), from))));
  }
  template <class D>
  static hn::Vec<Bits<D>> rounded([[maybe_unused]] D d, hn::Vec<D> v) {  // the upper 16 bits count
    const Bits<D> du;
    const auto quiet = hn::Or(hn::BitCast(du, v), hn::Set(du, 0x400000));
    return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded_number(d, v));
  }
  template <class D>
  static hn::Vec<Bits<D>> rounded_number([[maybe_unused]] D d, hn::Vec<D> v) {  // not a NaN
    const Bits<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  }
  template <class D>
  static void store(D d, hn::Vec<D> v, Element* to) {
    const auto top = hn::ShiftRight<16>(rounded(d, v));
    hn::StoreU(hn::DemoteTo(Half<D>(), hn::BitCast(hn::RebindToSigned<D>(), top)), Half<D>(), to);
  }
};

// IEEE binary16. The scale 2^112 moves the exponent bias from 15 to 127 exactly, subnormals too.
struct Fp16 {
  using Element = std::uint16_t;
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    const Bits<D> du;
    const auto half = hn::PromoteTo(du, hn::LoadU(Half<D>(), from));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7FFF)));
    const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
    const auto special = hn::Gt(hn::BitCast(hn::RebindToSigned<D>(), magnitude),
                                hn::Set(hn::RebindToSigned<D>(), (0x7C00 << 13) - 1));
    const auto value = hn::IfThenElse(hn::RebindMask(du, special),
                                      hn::Or(magnitude, hn::Set(du, 0x7F800000)), scaled);
    return hn::BitCast(d, hn::Or(value, sign));
  }
  template <class D>
  static void store([[maybe_unused]] D d, hn::Vec<D> v, Element* to) {
    const Bits<D> du;
    const hn::RebindToSigned<D> ds;
    const auto bits = hn::BitCast(du, v);
    const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
    const auto mag = hn::Xor(bits, sign);
    const auto mag_s = hn::BitCast(ds, mag);
    // Normal result: rebias, add half an ulp (less one when the kept bit is even), drop 13 bits.
    const auto odd = hn::And(hn::ShiftRight<13>(mag), hn::Set(du, 1));
    const auto normal = hn::ShiftRight<13>(
        hn::Add(hn::Add(hn::Sub(mag, hn::Set(du, 112u << 23)), hn::Set(du, 0xFFF)), odd));
    // Subnormal result: adding 0.5 lets the float unit round at the right bit.
    const auto magic = hn::Set(du, 126u << 23);
    const auto tiny =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, mag), hn::BitCast(d, magic))), magic);
    const auto is_tiny = hn::RebindMask(du, hn::Lt(mag_s, hn::Set(ds, 113 << 23)));
    const auto is_big = hn::RebindMask(du, hn::Gt(mag_s, hn::Set(ds, 0x47800000 - 1)));
    const auto is_nan = hn::RebindMask(du, hn::Gt(mag_s, hn::Set(ds, 0x7F800000)));
    const auto big = hn::IfThenElse(is_nan, hn::Set(du, 0x7E00), hn::Set(du, 0x7C00));
    auto half = hn::IfThenElse(is_big, big, hn::IfThenElse(is_tiny, tiny, normal));
    half = hn::Or(half, hn::ShiftRight<16>(sign));
    hn::StoreU(hn::DemoteTo(Half<D>(), hn::BitCast(ds, half)), Half<D>(), to);
  }
};

// The elements of one whole vector as two vectors of floats, in an order that store() undoes.
template <class T>
struct Pairs {
  using Element = typename T::Element;
  template <class D>
  static hn::Vec<D> first(D d, const Element* from) {
    return T::load(d, from);
  }
  template <class D>
  static hn::Vec<D> second(D d, const Element* from) {
    return T::load(d, from + hn::Lanes(d));
  }
  template <class D>
  static void store(D d, hn::Vec<D> first, hn::Vec<D> second, Element* to) {
    T::store(d, first, to);
    T::store(d, second, to + hn::Lanes(d));
  }
  template <class D>
  static void store_numbers(D d, hn::Vec<D> first, hn::Vec<D> second, Element* to) {
    store(d, first, second, to);
  }
};

#if HWY_TARGET != HWY_SCALAR  // which has no vector of two halves
// Even elements in the first vector, odd ones in the second: no shuffles.
template <>
struct Pairs<Bf16> {
  using Element = std::uint16_t;
  template <class D>
  static hn::Vec<Bits<D>> both([[maybe_unused]] D d, const Element* from) {
    return hn::BitCast(Bits<D>(), hn::LoadU(hn::Repartition<std::uint16_t, D>(), from));
  }
  template <class D>
  static hn::Vec<D> first(D d, const Element* from) {
    return hn::BitCast(d, hn::ShiftLeft<16>(both(d, from)));
  }
  template <class D>
  static hn::Vec<D> second(D d, const Element* from) {
    return hn::BitCast(d, hn::And(both(d, from), hn::Set(Bits<D>(), 0xFFFF0000u)));
  }
  template <class D>
  static void store_bits([[maybe_unused]] D d, hn::Vec<Bits<D>> first, hn::Vec<Bits<D>> second,
                         Element* to) {
    const hn::Repartition<std::uint16_t, D> d16;
    const auto odd = hn::And(second, hn::Set(Bits<D>(), 0xFFFF0000u));
    hn::StoreU(hn::BitCast(d16, hn::Or(hn::ShiftRight<16>(first), odd)), d16, to);
  }
  template <class D>
  static void store(D d, hn::Vec<D> first, hn::Vec<D> second, Element* to) {
    store_bits(d, Bf16::rounded(d, first), Bf16::rounded(d, second), to);
  }
  template <class D>
  static void store_numbers(D d, hn::Vec<D> first, hn::Vec<D> second, Element* to) {
    store_bits(d, Bf16::rounded_number(d, first), Bf16::rounded_number(d, second), to);
  }
};
#endif

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
