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
  static void store([[maybe_unused]] D d, hn::Vec<D> v, Element* to) {
    const Bits<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto nan = hn::RebindMask(du, hn::IsNaN(v));
    const auto top = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
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

// Elements [begin, end) of the sum to out[0..].
template <class T>
void sum_span(const RowSum& sum, std::size_t begin, std::size_t end, std::byte* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const std::size_t lanes = hn::Lanes(d);
  auto* to = reinterpret_cast<typename T::Element*>(out);
  std::size_t at = begin;
  for (; at + lanes <= end; at += lanes) T::store(d, sum_at<T>(d, sum, at), to + (at - begin));
  for (; at < end; ++at) T::store(one, sum_at<T>(one, sum, at), to + (at - begin));
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
