#include "memory/row_codec.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/math.hpp"
#include "memory/copy.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/row_codec.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

#include "memory/float_vectors_impl.hpp"

#ifndef UBEP_ROW_CODEC_ONCE
#define UBEP_ROW_CODEC_ONCE
namespace ubep {

// What all instruction sets share. The kernels work on at least so many columns, which are two
// vectors of 16 floats; fewer are padded.
inline constexpr std::size_t kLeast = 32;

// Columns of a row, from the beginning of a block on, and where their parts go.
struct CodecSpan {
  const std::byte* x;
  std::size_t columns;
  std::byte* values;
  std::byte* scales;
  float int8_factor;  // of the whole row; 0: it has an element that is not finite
};

constexpr std::size_t bytes_of_scale(Quant quant) {
  return quant == Quant::mxfp8 || quant == Quant::fp8_ue8m0 ? 1 : 4;
}

// The largest finite magnitude, and whether there is an element that is not finite.
struct Amax {
  float value;
  bool special;
};

struct BlockScale {
  float scale;
  float factor;  // what x is multiplied by
};

inline float power_of_two(std::uint32_t biased) {  // 2^(biased - 127), of 0..254
  return std::bit_cast<float>(biased == 0 ? 0x00400000U : biased << 23);
}

inline BlockScale block_scale(Quant quant, float amax) {
  if (quant == Quant::fp8) {
    const float floored = std::max(amax, 1e-4F);
    return {floored / 448.0F, 448.0F / floored};
  }
  std::uint32_t biased = 0;
  if (quant == Quant::mxfp8) {  // E4M3's largest power of two is 2^8; a subnormal's field is 0
    biased = std::max(std::bit_cast<std::uint32_t>(amax) >> 23, 8U) - 8;
  } else {  // the least power of two of which 448 = 1.75 * 2^8 times is not less
    const auto bits = std::bit_cast<std::uint32_t>(std::max(amax, 1e-4F));
    biased = (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000 ? 1 : 0);
  }
  return {power_of_two(biased), power_of_two(254 - biased)};
}

inline BlockScale int8_scale(Amax amax) {
  if (amax.special) return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  const float floored = std::max(amax.value, 1e-10F);
  return {floored / 127.0F, 127.0F / floored};
}

inline void store_scale(Quant quant, float scale, std::byte* to) {
  if (bytes_of_scale(quant) == 4) {
    std::memcpy(to, &scale, 4);
  } else {
    *to = static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
  }
}

inline float load_scale(Quant quant, const std::byte* from) {
  if (bytes_of_scale(quant) == 1) {
    const auto biased = static_cast<std::uint32_t>(*from);
    return biased == 255 ? std::numeric_limits<float>::quiet_NaN() : power_of_two(biased);
  }
  float scale = 0;
  std::memcpy(&scale, from, 4);
  return scale;
}

}  // namespace ubep
#endif

HWY_BEFORE_NAMESPACE();
namespace ubep::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 floats, so that two vectors of them are never more than a block of 32.
using Floats = hn::CappedTag<float, 16>;

// Bit patterns without the sign, as integers, in the order of the magnitudes they stand for.
template <class T>
using Magnitude = std::conditional_t<sizeof(typename T::Element) == 4, std::int32_t, std::int16_t>;
template <class T>
constexpr Magnitude<T> kInfinity = std::is_same_v<T, Fp32>   ? 0x7F800000
                                   : std::is_same_v<T, Bf16> ? 0x7F80
                                                             : 0x7C00;

// A stand-in for columns that are not there: zeros change no amax.
template <class T>
struct Padded {
  using Element = typename T::Element;
  Padded(const Element* from, std::size_t columns) {
    std::memcpy(elements, from, columns * sizeof(Element));
  }
  Element elements[kLeast] = {};
};

template <class T>
HWY_INLINE Magnitude<T> largest_magnitude(const typename T::Element* from, std::size_t columns) {
  using Element = typename T::Element;
  const hn::CappedTag<Magnitude<T>, 64 / sizeof(Element)> d;
  const hn::Rebind<Element, decltype(d)> de;
  const auto no_sign = hn::Set(d, std::numeric_limits<Magnitude<T>>::max());
  const auto at = [&](std::size_t i) {
    return hn::And(hn::BitCast(d, hn::LoadU(de, from + i)), no_sign);
  };
  const std::size_t lanes = hn::Lanes(d);
  auto most = at(columns - lanes);  // whatever is left over by whole vectors
  for (std::size_t i = 0; i + lanes <= columns; i += lanes) most = hn::Max(most, at(i));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

template <class T>
Magnitude<T> magnitude_at(const typename T::Element* from, std::size_t i) {
  Magnitude<T> bits = 0;
  std::memcpy(&bits, from + i, sizeof bits);
  return static_cast<Magnitude<T>>(bits & std::numeric_limits<Magnitude<T>>::max());
}

template <class T>
HWY_NOINLINE Magnitude<T> largest_finite(const typename T::Element* from, std::size_t columns) {
  Magnitude<T> most = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    const Magnitude<T> bits = magnitude_at<T>(from, i);
    if (bits < kInfinity<T>) most = std::max(most, bits);
  }
  return most;
}

// Of at least kLeast columns.
template <class T>
HWY_INLINE Amax amax_of(const typename T::Element* from, std::size_t columns) {
  Magnitude<T> most = largest_magnitude<T>(from, columns);
  const bool special = most >= kInfinity<T>;
  if (HWY_UNLIKELY(special)) most = largest_finite<T>(from, columns);
  const auto element = std::bit_cast<typename T::Element>(most);
  return {hn::GetLane(T::load(hn::CappedTag<float, 1>(), &element)), special};
}

// Rounding to e4m3: to |x| * factor its own power of two times 2^20 is added, of which the unit in
// the last place is that of the result; below the smallest normal number, 2^-6, that of 2^-6. So
// the float unit rounds, and leaves the significand, 0..16, in the low bits. There are as many
// units more as make of field * 8 + significand the code; they are even, so ties are what they
// were.
template <bool kSaturates>
struct ToE4m3 {
  static constexpr bool kOfMagnitudes = true;
  template <class D>
  static hn::Vec<Bits<D>> rounded(D d, hn::Vec<D> magnitude, hn::Vec<D> factor) {
    const hn::RebindToSigned<D> ds;
    const auto value = hn::Mul(magnitude, factor);
    const auto field =
        hn::Max(hn::And(hn::BitCast(ds, value), hn::Set(ds, 0x7F800000)), hn::Set(ds, 121 << 23));
    const auto magic = hn::Add(field, hn::Set(ds, (20 << 23) + 0x10000 - 121 * 8));
    const auto sum = hn::BitCast(ds, hn::Add(value, hn::BitCast(d, magic)));
    return hn::BitCast(Bits<D>(), hn::Add(sum, hn::ShiftRight<20>(field)));
  }
  // Of the low 16 bits of that. Without kSaturates nothing rounds to more than 448.
  template <class D, class V>
  static V code(D d, V rounded) {
    return kSaturates ? hn::Min(rounded, hn::Set(d, 0x7E)) : rounded;
  }
};

// Rounding to integers: the unit in the last place of 1.5 * 2^23 is 1. Two roundings make of the
// row's largest at most 127 * (1 + 2^-22), so nothing is beyond 127.
struct ToInt8 {
  static constexpr bool kOfMagnitudes = false;
  template <class D>
  static hn::Vec<Bits<D>> rounded(D d, hn::Vec<D> x, hn::Vec<D> factor) {
    return hn::BitCast(Bits<D>(), hn::Add(hn::Mul(x, factor), hn::Set(d, 0x1.8p23F)));
  }
  template <class D, class V>
  static V code(D d, V rounded) {
    return hn::And(rounded, hn::Set(d, 0xFF));
  }
};

// Two vectors of floats to two vectors of codes.
template <class T, class Code>
struct Pair {
  template <class D>
  static HWY_INLINE void encode(D d, const typename T::Element* from, hn::Vec<D> factor,
                                std::uint8_t* to) {
    one(d, from, factor, to);
    one(d, from + hn::Lanes(d), factor, to + hn::Lanes(d));
  }
  template <class D>
  static HWY_INLINE void one(D d, const typename T::Element* from, hn::Vec<D> factor,
                             std::uint8_t* to) {
    const hn::RebindToSigned<D> ds;
    const hn::Rebind<std::uint8_t, D> d8;
    auto x = T::load(d, from);
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(ds, x)), hn::Set(ds, 0x80));
    if constexpr (Code::kOfMagnitudes) x = hn::Abs(x);
    const auto rounded = hn::BitCast(ds, Code::rounded(d, x, factor));
    auto code = Code::code(ds, hn::And(rounded, hn::Set(ds, 0xFFFF)));
    if constexpr (Code::kOfMagnitudes) code = hn::Or(code, sign);
    hn::StoreU(hn::DemoteTo(d8, code), d8, to);
  }
};

#if HWY_TARGET != HWY_SCALAR  // which has no vector of two halves
// Even and odd elements, as in Pairs<Bf16>; what is common to both is done on 16-bit lanes.
template <class Code>
struct Pair<Bf16, Code> {
  template <class D>
  static HWY_INLINE void encode(D d, const std::uint16_t* from, hn::Vec<D> factor,
                                std::uint8_t* to) {
    const hn::Repartition<std::int16_t, D> d16;
    const hn::Rebind<std::uint8_t, decltype(d16)> d8;
    const Bits<D> du;
    const auto both = hn::BitCast(d16, Pairs<Bf16>::both(d, from));
    auto x = both;
    if constexpr (Code::kOfMagnitudes) x = hn::And(both, hn::Set(d16, 0x7FFF));
    const auto pair = hn::BitCast(du, x);
    const auto even = hn::BitCast(d, hn::ShiftLeft<16>(pair));
    const auto odd = hn::BitCast(d, hn::And(pair, hn::Set(du, 0xFFFF0000U)));
    const auto upper = hn::ShiftLeft<16>(Code::rounded(d, odd, factor));
    const auto lower = Code::rounded(d, even, factor);
    auto code = Code::code(d16, hn::OddEven(hn::BitCast(d16, upper), hn::BitCast(d16, lower)));
    if constexpr (Code::kOfMagnitudes) {
      code = hn::Or(code, hn::And(hn::ShiftRight<8>(both), hn::Set(d16, 0x80)));
    }
    hn::StoreU(hn::DemoteTo(d8, code), d8, to);
  }
};
#endif

// At least kLeast columns.
template <class T, class Code>
HWY_INLINE void encode_values(const typename T::Element* from, std::size_t columns, float factor,
                              std::byte* to) {
  const Floats d;
  const std::size_t step = 2 * hn::Lanes(d);
  const auto factors = hn::Set(d, factor);
  auto* bytes = reinterpret_cast<std::uint8_t*>(to);
  std::size_t at = 0;
  for (; at + step <= columns; at += step) {
    Pair<T, Code>::encode(d, from + at, factors, bytes + at);
  }
  if (at == columns) return;
  at = columns - step;  // some a second time
  Pair<T, Code>::encode(d, from + at, factors, bytes + at);
}

// What is known of a block before its values are made.
struct Ready {
  float factor;
  bool special;
};

template <class T>
HWY_INLINE Ready make_scale(Quant quant, const CodecSpan& block) {
  const Amax amax =
      amax_of<T>(reinterpret_cast<const typename T::Element*>(block.x), block.columns);
  const BlockScale scale = block_scale(quant, amax.value);
  store_scale(quant, scale.scale, block.scales);
  return {scale.factor, amax.special};
}

template <class T, bool kSaturates>
HWY_INLINE void make_values(const CodecSpan& block, Ready ready) {
  const auto* from = reinterpret_cast<const typename T::Element*>(block.x);
  encode_values<T, ToE4m3<kSaturates>>(from, block.columns, ready.factor, block.values);
  if (HWY_LIKELY(!ready.special)) return;
  for (std::size_t i = 0; i < block.columns; ++i) {
    if (magnitude_at<T>(from, i) >= kInfinity<T>) block.values[i] = std::byte{0x7F};
  }
}

// Whole blocks. The scale of the next one is on its way while values are made.
template <class T, std::size_t kColumns>
void encode_blocks(Quant quant, const CodecSpan& span) {
  const std::size_t blocks = span.columns / kColumns;
  CodecSpan block = span;
  block.columns = kColumns;
  Ready ready = blocks == 0 ? Ready{} : make_scale<T>(quant, block);
  for (std::size_t i = 1; i <= blocks; ++i) {
    CodecSpan next = block;
    next.x += kColumns * sizeof(typename T::Element);
    next.values += kColumns;
    next.scales += bytes_of_scale(quant);
    const Ready after = i == blocks ? Ready{} : make_scale<T>(quant, next);
    make_values<T, kColumns == 32>(block, ready);
    block = next;
    ready = after;
  }
}

// Columns of one block, or of a row of int8.
template <class T>
void encode_part(Quant quant, const CodecSpan& part) {
  const auto* from = reinterpret_cast<const typename T::Element*>(part.x);
  if (part.columns < kLeast) {
    const Padded<T> padded(from, part.columns);
    std::byte values[kLeast];
    CodecSpan whole = part;
    whole.x = reinterpret_cast<const std::byte*>(padded.elements);
    whole.columns = kLeast;
    whole.values = values;
    encode_part<T>(quant, whole);
    std::memcpy(part.values, values, part.columns);
  } else if (quant != Quant::int8) {
    make_values<T, true>(part, make_scale<T>(quant, part));
  } else if (part.int8_factor > 0) {
    encode_values<T, ToInt8>(from, part.columns, part.int8_factor, part.values);
  } else {
    std::memset(part.values, 0, part.columns);
  }
}

template <class T>
void encode_as(Quant quant, const CodecSpan& span) {
  std::size_t whole = 0;
  if (quant == Quant::mxfp8) {
    encode_blocks<T, 32>(quant, span);
    whole = span.columns / 32 * 32;
  } else if (quant != Quant::int8) {
    encode_blocks<T, 128>(quant, span);
    whole = span.columns / 128 * 128;
  }
  if (whole == span.columns) return;
  CodecSpan rest = span;
  rest.x += whole * sizeof(typename T::Element);
  rest.columns -= whole;
  rest.values += whole;
  rest.scales += whole / RowFormat::of(quant, span.columns).scale_block * bytes_of_scale(quant);
  encode_part<T>(quant, rest);
}

void encode_span(Quant quant, DType dtype, const CodecSpan& span) {
  switch (dtype) {
    case DType::bf16:
      return encode_as<Bf16>(quant, span);
    case DType::fp16:
      return encode_as<Fp16>(quant, span);
    case DType::fp32:
      return encode_as<Fp32>(quant, span);
    case DType::u8:
      return;  // encoded already
  }
}

template <class T>
Amax amax_of_row(const std::byte* x, std::size_t hidden) {
  const auto* from = reinterpret_cast<const typename T::Element*>(x);
  if (hidden < kLeast) return amax_of<T>(Padded<T>(from, hidden).elements, kLeast);
  return amax_of<T>(from, hidden);
}

Amax row_amax(const RowSource& row) {
  switch (row.dtype) {
    case DType::bf16:
      return amax_of_row<Bf16>(row.x, row.hidden);
    case DType::fp16:
      return amax_of_row<Fp16>(row.x, row.hidden);
    case DType::fp32:
    case DType::u8:
      break;
  }
  return amax_of_row<Fp32>(row.x, row.hidden);
}

struct FromE4m3 {
  template <class D>
  static hn::Vec<D> load(D d, const std::byte* from) {
    const hn::RebindToSigned<D> ds;
    const hn::Rebind<std::uint8_t, D> d8;
    const auto code = hn::PromoteTo(ds, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from)));
    const auto magnitude = hn::And(code, hn::Set(ds, 0x7F));
    const auto bits = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(ds, 120 << 23));
    // A subnormal, m * 2^-9: (1 + m / 8) * 2^-6 without the 1.
    const auto above = hn::BitCast(d, hn::Add(bits, hn::Set(ds, 1 << 23)));
    const auto tiny = hn::BitCast(ds, hn::Sub(above, hn::Set(d, 0x1p-6F)));
    auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(ds, 8)), tiny, bits);
    value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(ds, 0x7F)), hn::Set(ds, 0x7FC00000), value);
    return hn::BitCast(d, hn::Or(value, hn::ShiftLeft<24>(hn::Xor(code, magnitude))));
  }
};

struct FromInt8 {
  template <class D>
  static hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<std::int8_t, D> d8;
    const auto code = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(from));
    return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), code));
  }
};

// At least kLeast columns.
template <class Code, class T>
void decode_values(const std::byte* from, std::size_t columns, float scale,
                   typename T::Element* to) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto decode = [&](std::size_t at) {
    const auto value = hn::Mul(Code::load(d, from + at), hn::Set(d, scale));
    // Which NaN comes out of a product is not the same everywhere.
    const auto nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    T::store(d, hn::IfThenElse(hn::IsNaN(value), nan, value), to + at);
  };
  std::size_t at = 0;
  for (; at + lanes <= columns; at += lanes) decode(at);
  if (at != columns) decode(columns - lanes);
}

template <class Code, class T>
void decode_block(const std::byte* from, std::size_t columns, float scale,
                  typename T::Element* to) {
  if (columns >= kLeast) return decode_values<Code, T>(from, columns, scale, to);
  std::byte values[kLeast] = {};
  typename T::Element out[kLeast];
  std::memcpy(values, from, columns);
  decode_values<Code, T>(values, kLeast, scale, out);
  std::memcpy(to, out, columns * sizeof(typename T::Element));
}

template <class T>
void decode_blocks(Quant quant, const std::byte* row, std::size_t hidden, std::byte* out) {
  const RowFormat format = RowFormat::of(quant, hidden);
  auto* to = reinterpret_cast<typename T::Element*>(out);
  for (std::size_t i = 0; i < format.num_scales; ++i) {
    const std::size_t at = i * format.scale_block;
    const std::size_t columns = std::min(format.scale_block, hidden - at);
    const float scale = load_scale(quant, row + format.scale_offset + i * format.scale_bytes);
    if (quant == Quant::int8) {
      decode_block<FromInt8, T>(row + at, columns, scale, to + at);
    } else {
      decode_block<FromE4m3, T>(row + at, columns, scale, to + at);
    }
  }
}

void decode_to(Quant quant, const std::byte* row, std::size_t hidden, DType target,
               std::byte* out) {
  switch (target) {
    case DType::bf16:
      return decode_blocks<Bf16>(quant, row, hidden, out);
    case DType::fp16:
      return decode_blocks<Fp16>(quant, row, hidden, out);
    case DType::fp32:
      return decode_blocks<Fp32>(quant, row, hidden, out);
    case DType::u8:
      return;
  }
}

}  // namespace ubep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ubep {
HWY_EXPORT(encode_span);
HWY_EXPORT(row_amax);
HWY_EXPORT(decode_to);

namespace {

constexpr std::size_t kMostStagedScales = 4096;  // bytes, on the stack

// The factor of an int8 row, whose scale is stored; 0 for other formats.
float factor_of_row(Quant quant, const RowSource& row, std::byte* scale_at) {
  if (quant != Quant::int8) return 0;
  const Amax amax = HWY_DYNAMIC_DISPATCH(row_amax)(row);
  const BlockScale scale = int8_scale(amax);
  store_scale(quant, scale.scale, scale_at);
  return scale.factor;
}

}  // namespace

void encode_row(Quant quant, const RowSource& row, std::byte* out) {
  const RowFormat format = RowFormat::of(quant, row.hidden);
  std::byte* scales = out + format.scale_offset;
  std::memset(out + row.hidden, 0, format.scale_offset - row.hidden);
  const float factor = factor_of_row(quant, row, scales);
  HWY_DYNAMIC_DISPATCH(encode_span)(quant, row.dtype, {row.x, row.hidden, out, scales, factor});
}

void encode_row_streaming(Quant quant, const RowSource& row, std::byte* out) {
  constexpr std::size_t kChunk = 1024;  // columns: whole blocks, whole lines, and stays in L1
  const RowFormat format = RowFormat::of(quant, row.hidden);
  const std::size_t scale_bytes = format.num_scales * format.scale_bytes;
  if (scale_bytes > kMostStagedScales) return encode_row(quant, row, out);
  const std::size_t whole = row.hidden / kLineBytes * kLineBytes;  // values in lines of their own
  alignas(64) std::byte chunk[kChunk];
  alignas(64) std::byte rest[kLineBytes + kMostStagedScales];
  std::memset(rest, 0, kLineBytes);  // the padding lies in the first line
  std::byte* scales = rest + (format.scale_offset - whole);
  const float factor = factor_of_row(quant, row, scales);
  for (std::size_t at = 0; at < row.hidden; at += kChunk) {
    const std::size_t columns = std::min(kChunk, row.hidden - at);
    const std::size_t block = at / format.scale_block;
    HWY_DYNAMIC_DISPATCH(encode_span)
    (quant, row.dtype,
     {row.x + at * size_of(row.dtype), columns, chunk, scales + block * format.scale_bytes,
      factor});
    const std::size_t lines = columns / kLineBytes * kLineBytes;
    copy_streaming(out + at, chunk, lines);
    std::memcpy(rest, chunk + lines, columns - lines);
  }
  copy_streaming(out + whole, rest, format.bytes() - whole);
}

void decode_row(Quant quant, const std::byte* row, std::size_t hidden, DType target,
                std::byte* out) {
  HWY_DYNAMIC_DISPATCH(decode_to)(quant, row, hidden, target, out);
}

}  // namespace ubep
#endif
