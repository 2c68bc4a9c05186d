// Options that are one of a few words.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>

#include "tools/ubep/input_error.hpp"
#include "ubep/types.hpp"

namespace ubep::tools {

template <class Enum>
Enum one_of(const std::string& text, const char* option, std::initializer_list<Enum> values) {
  std::string all;
  for (Enum value : values) {
    if (text == name(value)) return value;
    all += (all.empty() ? "" : ", ") + std::string(name(value));
  }
  throw InputError(fmt::format("{}: '{}' is not one of {}", option, text, all));
}

inline DType dtype_of(const std::string& text) {
  return one_of(text, "--dtype", {DType::bf16, DType::fp16, DType::fp32});
}

inline Quant quant_of(const std::string& text) {
  return one_of(
      text, "--quant",
      {Quant::none, Quant::fp8, Quant::fp8_pow2, Quant::fp8_ue8m0, Quant::int8, Quant::mxfp8});
}

}  // namespace ubep::tools
