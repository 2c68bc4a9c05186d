// Sentinel Polling: bare rows over words that hold a sentinel; a row is whole once none of its
// words does. The owner stores the sentinel again as it takes a row out. Rows that hold the
// sentinel are announced by `sent` (docs/protocol.md); outputs get another NaN in its place.
#pragma once

#include <fmt/format.h>

#include "base/hash.hpp"
#include "memory/row_words.hpp"
#include "protocol/row_protocol.hpp"

namespace ubep {

class Sentinel final : public RowProtocol {
 public:
  // The same in every epoch of a slot, so that only words that were written need to be stored
  // again. Four NaNs of 16 bits (bf16 and fp16), two of fp32: finite rows never collide.
  static constexpr std::uint64_t word(int slot) {
    const std::uint64_t hash = mix(0x75626570, static_cast<std::uint64_t>(slot));
    return (hash & 0x003f'003f'003f'003f) | 0x7fc0'7fc0'7fc0'7fc0 | 0x0001'0001'0001'0001;
  }

  Protocol id() const override { return Protocol::sentinel; }
  Arrival arrival() const override { return Arrival::decoded; }
  std::string refusal(const FabricFacts& facts) const override {
    if (facts.atomic_bytes >= kWordBytes) return "";
    return fmt::format(
        "protocol {} needs stores of {} bytes that are never torn: the fabric has {}", name(id()),
        kWordBytes, facts.atomic_bytes);
  }
  std::uint64_t wire_bytes(std::uint64_t row_bytes) const override {
    return words_of(row_bytes) * kWordBytes;
  }

  std::uint32_t encode(const WireRow& wire, const std::byte* row, std::byte* to,
                       std::uint32_t sum) const override {
    wire.is_output ? store_words_without(word(wire.slot), to, row, wire.bytes)
                   : store_words(to, row, wire.bytes);
    return sum;
  }
  bool decode(const WireRow& wire, const std::byte* from, std::byte* row,
              std::uint32_t& /*sum*/) const override {
    if (!wire.announced) return load_words_unless(word(wire.slot), row, from, wire.bytes);
    if (row != nullptr) load_words(row, from, wire.bytes);
    return true;
  }

  bool arms() const override { return true; }
  void arm(int slot, std::byte* to, std::uint64_t bytes) const override {
    fill_words(to, word(slot), words_of(bytes));
  }
  bool collides(const WireRow& wire, const std::byte* row) const override {
    return has_word(word(wire.slot), row, wire.bytes);
  }
};

}  // namespace ubep
