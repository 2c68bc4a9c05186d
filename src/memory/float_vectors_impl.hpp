// Vectors of floats from and to elements of each dtype, by code of our own (docs/adr/0007).
//
// Included once per instruction set by files that Highway's foreach_target.h compiles, after
// <hwy/highway.h>; never by anything else.
#if defined(UBEP_MEMORY_FLOAT_VECTORS_IMPL) == defined(HWY_TARGET_TOGGLE)
#ifdef UBEP_MEMORY_FLOAT_VECTORS_IMPL
#undef UBEP_MEMORY_FLOAT_VECTORS_IMPL
#else
#define UBEP_MEMORY_FLOAT_VECTORS_IMPL
#endif

#include <hwy/highway.h>

#include <cstdint>

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

}  // namespace ubep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
