// Dispatched rows that are smaller than the token's: quantised, with their scales.
#pragma once

#include <cstdint>

namespace ubep::sim {

// int8: one scale for the row and where it comes from (rank, token, choice). fp8: a scale of 4
// bytes for every 128 elements; mxfp8: one of 1 byte for every 32; nvfp4: one of 1 byte for
// every 16.
enum class Quant : std::uint8_t { none, int8, fp8, mxfp8, nvfp4 };
const char* name(Quant quant);

// Of a row of `hidden` elements; not of `none`.
std::uint64_t record_bytes(Quant quant, int hidden);
// What records begin on where they lie bare, one behind the other.
std::uint64_t record_grid(Quant quant);

}  // namespace ubep::sim
