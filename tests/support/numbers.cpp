#include "support/numbers.hpp"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace ubep::test {
namespace {

constexpr Bits kFloatNan = 0x7fc00000;

Bits bits_of(float value) { return std::bit_cast<Bits>(value); }

Bits round_to_bf16(float value) {
  const Bits bits = bits_of(value);
  if (std::isnan(value)) return 0x7fc0;
  const Bits upper = bits >> 16;
  const Bits lower = bits & 0xffff;
  const bool up = lower > 0x8000 || (lower == 0x8000 && (upper & 1) != 0);
  return upper + (up ? 1 : 0);
}

// The value in units of the last place of its result, as an integer: nearbyint rounds to even.
Bits round_to_fp16(float value) {
  const Bits sign = bits_of(value) >> 31 << 15;
  if (std::isnan(value)) return 0x7e00;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return sign | 0x7c00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = [0.5, 1) * 2^exponent
  const int lowest = -14;            // exponent of the smallest normal number
  const int power = exponent - 1 < lowest || magnitude == 0 ? lowest : exponent - 1;
  const double steps = std::nearbyint(std::ldexp(magnitude, 10 - power));
  // A denormal has fewer than 1024 steps and exponent field 0; a carry moves on by itself.
  const Bits field = static_cast<Bits>(power - lowest);
  return sign | (static_cast<Bits>(steps) + (field << 10));
}

float from_fp16(Bits bits) {
  const Bits exponent = bits >> 10 & 0x1f;
  const Bits fraction = bits & 0x3ff;
  const bool negative = (bits & 0x8000) != 0;
  double magnitude = 0;
  if (exponent == 0x1f) {
    if (fraction != 0) return std::bit_cast<float>(kFloatNan);
    magnitude = HUGE_VAL;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<double>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<double>(fraction + 1024), static_cast<int>(exponent) - 25);
  }
  return static_cast<float>(negative ? -magnitude : magnitude);
}

}  // namespace

Bits load_bits(DType dtype, const std::byte* element) {
  if (dtype == DType::fp32) {
    Bits bits = 0;
    std::memcpy(&bits, element, 4);
    return bits;
  }
  if (dtype == DType::u8) return std::to_integer<Bits>(*element);
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, 2);
  return bits;
}

void store_bits(DType dtype, Bits bits, std::byte* element) {
  if (dtype == DType::fp32) {
    std::memcpy(element, &bits, 4);
    return;
  }
  const std::uint16_t half = static_cast<std::uint16_t>(bits);
  std::memcpy(element, &half, 2);
}

float to_float(DType dtype, Bits bits) {
  switch (dtype) {
    case DType::bf16:
      return std::bit_cast<float>(bits << 16);
    case DType::fp16:
      return from_fp16(bits);
    case DType::u8:
      return static_cast<float>(bits);
    case DType::fp32:
      break;
  }
  return std::bit_cast<float>(bits);
}

Bits round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::bf16:
      return round_to_bf16(value);
    case DType::fp16:
      return round_to_fp16(value);
    case DType::fp32:
    case DType::u8:
      break;
  }
  return bits_of(value);
}

bool is_nan(DType dtype, Bits bits) {
  switch (dtype) {
    case DType::bf16:
      return (bits & 0x7fff) > 0x7f80;
    case DType::fp16:
      return (bits & 0x7fff) > 0x7c00;
    case DType::u8:
      return false;
    case DType::fp32:
      break;
  }
  return (bits & 0x7fffffff) > 0x7f800000;
}

bool same_element(DType dtype, Bits a, Bits b) {
  return a == b || (is_nan(dtype, a) && is_nan(dtype, b));
}

std::string describe(DType dtype, Bits bits) {
  char text[64];
  std::snprintf(text, sizeof text, "0x%0*x (%g)", dtype == DType::fp32 ? 8 : 4, bits,
                static_cast<double>(to_float(dtype, bits)));
  return text;
}

[[gnu::noinline]] float multiply(float a, float b) { return a * b; }
[[gnu::noinline]] float add(float a, float b) { return a + b; }
[[gnu::noinline]] float divide(float a, float b) { return a / b; }

}  // namespace ubep::test
