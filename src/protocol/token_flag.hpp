// Token-Flag Fusion: a row is cut into blocks of payload and flag, and is whole once every block
// has the epoch's flag. A block is seen as one unit (the fabric's promise), or its flag, which is
// stored last, is seen last.
//
//   16  = 12 payload |  4 flag: a narrow tag in the upper half of the second word
//   128 = 120        |  8 flag: the epoch
//   512 = 480        | 32 flag: the epoch four times, so that more kinds of tearing show
#pragma once

#include <fmt/format.h>

#include <cstring>

#include "memory/row_words.hpp"
#include "memory/word.hpp"
#include "protocol/row_protocol.hpp"

namespace ubep {

template <Protocol protocol, std::uint64_t block, std::uint64_t flag>
class TokenFlag final : public RowProtocol {
 public:
  static constexpr std::uint64_t kPayload = block - flag;

  Protocol id() const override { return protocol; }
  Arrival arrival() const override { return Arrival::decoded; }
  std::string refusal(const FabricFacts& facts) const override {
    if (facts.atomic_bytes >= block || facts.ordered_stores) return "";
    return fmt::format(
        "protocol {} needs stores of {} bytes that are never torn, or ordered stores: the fabric "
        "has {} bytes, not ordered",
        name(protocol), block, facts.atomic_bytes);
  }
  std::uint64_t wire_bytes(std::uint64_t row_bytes) const override {
    return blocks_of(row_bytes) * block;
  }
  std::uint64_t row_grid() const override { return block; }
  bool tags_are_narrow() const override { return kNarrow; }

  std::uint32_t encode(const WireRow& wire, const std::byte* row, std::byte* to,
                       std::uint32_t sum) const override {
    for (std::uint64_t at = 0; at < wire.bytes; at += kPayload, to += block) {
      encode_block(wire.epoch, row + at, std::min(kPayload, wire.bytes - at), to);
    }
    return sum;
  }

  // The last block first: most often, what is missing is not there at all.
  bool decode(const WireRow& wire, const std::byte* from, std::byte* row,
              std::uint32_t& /*sum*/) const override {
    for (std::uint64_t i = blocks_of(wire.bytes); i-- != 0;) {
      if (!has_flag(wire.epoch, from + i * block)) return false;
      if (row == nullptr) continue;
      const std::uint64_t at = i * kPayload;
      decode_block(from + i * block, row + at, std::min(kPayload, wire.bytes - at));
    }
    return true;
  }

 private:
  static constexpr bool kNarrow = flag < kWordBytes;
  static constexpr std::uint64_t kWholeBytes = kPayload / kWordBytes * kWordBytes;
  static constexpr std::uint64_t kLastWord = block - kWordBytes;
  static_assert(kPayload - kWholeBytes == (kNarrow ? 4 : 0) && kWireGrid % block == 0);

  static std::uint64_t blocks_of(std::uint64_t bytes) { return (bytes + kPayload - 1) / kPayload; }
  static std::uint64_t last_word(std::uint64_t epoch) {
    return kNarrow ? std::uint64_t{narrow_tag(epoch)} << 32 : epoch;
  }

  static void encode_block(std::uint64_t epoch, const std::byte* from, std::uint64_t bytes,
                           std::byte* to) {
    store_words(to, from, std::min(bytes, kWholeBytes));
    std::uint64_t last = last_word(epoch);
    if (kNarrow && bytes > kWholeBytes) {
      std::uint32_t rest = 0;
      std::memcpy(&rest, from + kWholeBytes, bytes - kWholeBytes);
      last |= rest;
    }
    for (std::uint64_t at = kPayload; at < kLastWord; at += kWordBytes)
      store_relaxed(to + at, epoch);
    // publishes: the block's payload, to has_flag() on its owner; without the order that would find
    // the flag over words of an earlier epoch.
    SharedWord(to + kLastWord).store_release(last);
  }

  static bool has_flag(std::uint64_t epoch, const std::byte* from) {
    // acquires: the block's payload, from encode_block().
    const std::uint64_t last = SharedWord(from + kLastWord).load_acquire();
    if (kNarrow) return last >> 32 == narrow_tag(epoch);
    for (std::uint64_t at = kPayload; at < kLastWord; at += kWordBytes) {
      if (load_relaxed(from + at) != epoch) return false;
    }
    return last == epoch;
  }

  static void decode_block(const std::byte* from, std::byte* row, std::uint64_t bytes) {
    load_words(row, from, std::min(bytes, kWholeBytes));
    if (!kNarrow || bytes <= kWholeBytes) return;
    const std::uint64_t rest = load_relaxed(from + kLastWord);
    std::memcpy(row + kWholeBytes, &rest, bytes - kWholeBytes);
  }
};

using TokenFlag16 = TokenFlag<Protocol::token_flag_16, 16, 4>;
using TokenFlag128 = TokenFlag<Protocol::token_flag_128, 128, 8>;
using TokenFlag512 = TokenFlag<Protocol::token_flag_512, 512, 32>;

}  // namespace ubep
