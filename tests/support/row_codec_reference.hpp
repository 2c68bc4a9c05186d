// Scalar reference of quantised rows: what each format of `Quant` is, in double and by search.
//
// Purpose: an arithmetic of its own. It uses the library's enums and nothing else. Not for speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ubep/types.hpp"

namespace ubep::test {

// The number that an E4M3 byte stands for (OCP 8-bit floating point specification); 0x7f and 0xff
// are NaN.
double e4m3_value(std::uint8_t code);

// The nearest of all numbers of E4M3, found by trying all; of two the one with the even code. What
// is too large becomes 448; the sign stays.
std::uint8_t nearest_e4m3(double value);

// x [hidden] of `dtype` as a whole row: values, padding, scales.
std::vector<std::byte> reference_encode(Quant quant, DType dtype, const std::byte* x,
                                        std::size_t hidden);

// The elements of an encoded row, [hidden] of fp32.
std::vector<float> reference_decode(Quant quant, const std::byte* row, std::size_t hidden);

}  // namespace ubep::test
