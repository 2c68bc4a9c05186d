// Data-for-Checksum: bare rows in any order, and one word per batch: a narrow tag of the epoch and
// the CRC32C of the rows and the whole epoch. The batch is there once the word is what its rows
// give. Needs nothing of the fabric; the first row of a batch waits for the last.
#pragma once

#include <array>
#include <cstring>

#include "memory/crc32c.hpp"
#include "memory/row_words.hpp"
#include "protocol/row_protocol.hpp"

namespace ubep {

class DataChecksum final : public RowProtocol {
 public:
  Protocol id() const override { return Protocol::checksum; }
  Arrival arrival() const override { return Arrival::decoded; }
  std::uint64_t wire_bytes(std::uint64_t row_bytes) const override {
    return words_of(row_bytes) * kWordBytes;
  }
  bool has_checksums() const override { return true; }
  bool tags_are_narrow() const override { return true; }

  std::uint32_t encode(const WireRow& wire, const std::byte* row, std::byte* to,
                       std::uint32_t sum) const override {
    store_words(to, row, wire.bytes);
    return crc32c(sum, row, wire.bytes);
  }

  // What was loaded is what is summed: the words may still change.
  bool decode(const WireRow& wire, const std::byte* from, std::byte* row,
              std::uint32_t& sum) const override {
    if (row != nullptr) {
      load_words(row, from, wire.bytes);
      sum = crc32c(sum, row, wire.bytes);
      return true;
    }
    std::array<std::byte, 512> part;
    for (std::uint64_t at = 0; at < wire.bytes; at += part.size()) {
      const std::uint64_t bytes = std::min<std::uint64_t>(part.size(), wire.bytes - at);
      load_words(part.data(), from + at, bytes);
      sum = crc32c(sum, part.data(), bytes);
    }
    return true;
  }

  std::uint64_t checksum_word(const WireRow& wire, std::uint32_t sum) const override {
    std::array<std::byte, sizeof(wire.epoch)> epoch;
    std::memcpy(epoch.data(), &wire.epoch, epoch.size());
    return std::uint64_t{narrow_tag(wire.epoch)} << 32 | crc32c(sum, epoch.data(), epoch.size());
  }
};

}  // namespace ubep
