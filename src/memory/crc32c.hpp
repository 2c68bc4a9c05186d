// CRC32C (Castagnoli), in hardware where the processor has it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ubep {

// Goes on from `crc` (0 at the start): crc32c(crc32c(0, a), b) is that of a and b in a row.
std::uint32_t crc32c(std::uint32_t crc, const std::byte* data, std::size_t bytes);

// The same, by table, whatever the processor has.
std::uint32_t crc32c_by_table(std::uint32_t crc, const std::byte* data, std::size_t bytes);

}  // namespace ubep
