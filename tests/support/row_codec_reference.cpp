#include "support/row_codec_reference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/numbers.hpp"

namespace ubep::test {
namespace {

bool has_byte_scales(Quant quant) { return quant == Quant::fp8_ue8m0 || quant == Quant::mxfp8; }

std::size_t block_of(Quant quant, std::size_t hidden) {
  if (quant == Quant::int8) return hidden;
  return quant == Quant::mxfp8 ? 32 : 128;
}

struct Scale {
  double scale = 0;
  float inverse = 0;  // fp8 and int8: what is multiplied with; else values are divided
};

Scale scale_of(Quant quant, float amax, bool all_finite) {
  if (quant == Quant::int8) {
    if (!all_finite) return {std::numeric_limits<double>::quiet_NaN(), 0.0F};
    const float floored = std::max(amax, 1e-10F);
    return {static_cast<double>(divide(floored, 127.0F)), divide(127.0F, floored)};
  }
  if (quant == Quant::fp8) {
    const float floored = std::max(amax, 1e-4F);
    return {static_cast<double>(divide(floored, 448.0F)), divide(448.0F, floored)};
  }
  if (quant == Quant::mxfp8) {
    double power = 0x1p127;  // the largest that is not larger than the amax
    while (power > 0x1p-200 && power > static_cast<double>(amax)) power /= 2;
    return {std::max(power / 256, 0x1p-127), 0.0F};
  }
  double power = 0x1p-127;
  while (power * 448 < std::max(static_cast<double>(amax), static_cast<double>(1e-4F))) power *= 2;
  return {power, 0.0F};
}

std::uint8_t code_of(Quant quant, float x, const Scale& scale) {
  if (quant == Quant::int8) {
    if (std::isnan(scale.scale)) return 0;
    const double value = std::nearbyint(static_cast<double>(multiply(x, scale.inverse)));
    return static_cast<std::uint8_t>(static_cast<int>(std::clamp(value, -127.0, 127.0)));
  }
  if (!std::isfinite(x)) return 0x7F;
  if (quant == Quant::fp8) return nearest_e4m3(static_cast<double>(multiply(x, scale.inverse)));
  return nearest_e4m3(static_cast<double>(x) / scale.scale);
}

void append_scale(Quant quant, double scale, std::vector<std::byte>& row) {
  if (has_byte_scales(quant)) {
    int biased = 0;
    while (std::ldexp(1.0, biased - 127) != scale) ++biased;
    row.push_back(static_cast<std::byte>(biased));
    return;
  }
  const auto value = static_cast<float>(scale);
  std::byte bytes[4];
  std::memcpy(bytes, &value, 4);
  row.insert(row.end(), bytes, bytes + 4);
}

float scale_in(Quant quant, const std::byte* scales, std::size_t index) {
  if (has_byte_scales(quant)) {
    const auto biased = static_cast<int>(scales[index]);
    if (biased == 255) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(std::ldexp(1.0, biased - 127));
  }
  float scale = 0;
  std::memcpy(&scale, scales + 4 * index, 4);
  return scale;
}

}  // namespace

double e4m3_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

std::uint8_t nearest_e4m3(double value) {
  static const auto numbers = [] {
    std::array<double, 127> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = e4m3_value(static_cast<std::uint8_t>(i));
    return all;
  }();
  const double magnitude = std::fabs(value);
  std::size_t best = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    const double gain = std::fabs(numbers[best] - magnitude) - std::fabs(numbers[i] - magnitude);
    if (gain > 0 || (gain == 0 && i % 2 == 0)) best = i;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80U : 0U));
}

std::vector<std::byte> reference_encode(Quant quant, DType dtype, const std::byte* x,
                                        std::size_t hidden) {
  std::vector<float> elements(hidden);
  for (std::size_t i = 0; i < hidden; ++i) {
    elements[i] = to_float(dtype, load_bits(dtype, x + i * size_of(dtype)));
  }
  std::vector<std::byte> row;
  std::vector<std::byte> scales;
  const std::size_t block = block_of(quant, hidden);
  for (std::size_t begin = 0; begin < hidden; begin += block) {
    const std::size_t end = std::min(begin + block, hidden);
    float amax = 0;
    bool all_finite = true;
    for (std::size_t i = begin; i < end; ++i) {
      all_finite = all_finite && std::isfinite(elements[i]);
      if (std::isfinite(elements[i])) amax = std::max(amax, std::fabs(elements[i]));
    }
    const Scale scale = scale_of(quant, amax, all_finite);
    for (std::size_t i = begin; i < end; ++i) {
      row.push_back(static_cast<std::byte>(code_of(quant, elements[i], scale)));
    }
    append_scale(quant, scale.scale, scales);
  }
  while (!has_byte_scales(quant) && row.size() % 4 != 0) row.push_back(std::byte{0});
  row.insert(row.end(), scales.begin(), scales.end());
  return row;
}

std::vector<float> reference_decode(Quant quant, const std::byte* row, std::size_t hidden) {
  const std::byte* scales = row + (has_byte_scales(quant) ? hidden : (hidden + 3) / 4 * 4);
  std::vector<float> elements(hidden);
  for (std::size_t i = 0; i < hidden; ++i) {
    const auto code = static_cast<std::uint8_t>(row[i]);
    const double value = quant == Quant::int8 ? static_cast<std::int8_t>(code) : e4m3_value(code);
    const float scale = scale_in(quant, scales, i / block_of(quant, hidden));
    elements[i] = multiply(static_cast<float>(value), scale);
  }
  return elements;
}

}  // namespace ubep::test
