// Scalar conversions of the reference: bf16, fp16 and fp32 bytes to and from float.
//
// Purpose: an arithmetic of its own, so that a wrong rounding in the library cannot hide in the
// tests. Not for speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ubep/types.hpp"

namespace ubep::test {

// Bits of one element, in the low bytes.
using Bits = std::uint32_t;

Bits load_bits(DType dtype, const std::byte* element);
void store_bits(DType dtype, Bits bits, std::byte* element);

float to_float(DType dtype, Bits bits);
// To nearest, ties to even; too large becomes infinity; a NaN stays a NaN.
Bits round_to(DType dtype, float value);
bool is_nan(DType dtype, Bits bits);
// The same bits, or both NaN.
bool same_element(DType dtype, Bits a, Bits b);
// "0x3f80 (1)"
std::string describe(DType dtype, Bits bits);

// One rounding each, whatever the compiler's flags: never one fused multiply-add.
float multiply(float a, float b);
float add(float a, float b);
float divide(float a, float b);

}  // namespace ubep::test
