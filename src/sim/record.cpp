#include "sim/record.hpp"

#include "base/math.hpp"

namespace ubep::sim {

const char* name(Quant quant) {
  constexpr const char* kNames[] = {"none", "int8", "fp8", "mxfp8", "nvfp4"};
  return kNames[static_cast<std::size_t>(quant)];
}

std::uint64_t record_bytes(Quant quant, int hidden) {
  const auto elements = static_cast<std::uint64_t>(hidden);
  switch (quant) {
    case Quant::int8:
      return round_up(elements, 32) + 32 + 12;
    case Quant::fp8:
      return elements + (elements + 127) / 128 * 4;
    case Quant::mxfp8:
      return elements + (elements + 31) / 32;
    case Quant::nvfp4:
      return (elements + 1) / 2 + (elements + 15) / 16;
    case Quant::none:
      break;
  }
  return 0;
}

std::uint64_t record_grid(Quant quant) { return quant == Quant::int8 ? 512 : 1; }

}  // namespace ubep::sim
