// What several options' values must be.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace ubep::tools {

inline const CLI::Validator kSeed(  // digits only: a minus sign would wrap around
    [](const std::string& text) -> std::string {
      const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
      return !text.empty() && digits && text.size() < 19
                 ? ""
                 : fmt::format("'{}' is not a number of up to 18 digits", text);
    },
    "NUMBER");

// low..high, and never NaN, which no comparison refuses.
inline CLI::Validator from_to(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) -> std::string {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        return is_number && value >= low && value <= high
                   ? ""
                   : fmt::format("is {}, expected {} to {}", text, low, high);
      },
      fmt::format("{} to {}", low, high));
}

}  // namespace ubep::tools
