#include "memory/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ubep {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table = {};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::uint32_t crc,
                                                             const std::byte* data,
                                                             std::size_t bytes) {
  std::uint64_t state = ~crc;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto rest = static_cast<std::uint32_t>(state);
  for (; bytes != 0; ++data, --bytes) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(*data));
  return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::uint32_t crc, const std::byte* data, std::size_t bytes) {
  crc = ~crc;
  for (; bytes != 0; ++data, --bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<std::uint32_t>(*data)) & 0xff];
  }
  return ~crc;
}

std::uint32_t crc32c(std::uint32_t crc, const std::byte* data, std::size_t bytes) {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (has_sse42) return crc32c_sse42(crc, data, bytes);
#endif
  return crc32c_by_table(crc, data, bytes);
}

}  // namespace ubep
