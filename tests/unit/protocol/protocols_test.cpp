#include "protocol/protocols.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "memory/row_words.hpp"
#include "protocol/sentinel.hpp"
#include "support/random.hpp"

namespace ubep {
namespace {

std::vector<std::byte> random_bytes(std::size_t bytes, test::Random& random) {
  std::vector<std::byte> result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random.below(256));
  return result;
}

struct alignas(64) Line {
  std::byte bytes[64];
};

// A window's part for one row, as its owner made it.
class Window {
 public:
  Window(const RowProtocol& protocol, const WireRow& wire)
      : lines_(protocol.wire_stride(wire.bytes) / 16 + 1), bytes_(protocol.wire_bytes(wire.bytes)) {
    protocol.arm(wire.slot, data(), bytes_);
  }
  std::byte* data() { return lines_.front().bytes; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<Line> lines_;
  std::uint64_t bytes_;
};

TEST(ProtocolsTest, AreFoundByTheirNumbers) {
  EXPECT_EQ(find_protocol(Protocol::automatic).id(), Protocol::put_with_signal);
  EXPECT_EQ(all_protocols().size(), 7U);
  for (int p = 1; p <= static_cast<int>(Protocol::fence); ++p) {
    EXPECT_EQ(find_protocol(static_cast<Protocol>(p)).id(), static_cast<Protocol>(p));
  }
}

TEST(ProtocolsTest, WireBytesAreThoseOfTheBlocks) {
  const auto wire = [](Protocol protocol, std::uint64_t bytes) {
    return find_protocol(protocol).wire_bytes(bytes);
  };
  EXPECT_EQ(wire(Protocol::put_with_signal, 14336), 14336U);
  EXPECT_EQ(wire(Protocol::fence, 14337), 14400U);
  EXPECT_EQ(wire(Protocol::token_flag_16, 12), 16U);
  EXPECT_EQ(wire(Protocol::token_flag_16, 13), 32U);
  EXPECT_EQ(wire(Protocol::token_flag_128, 14336), 120U * 128);
  EXPECT_EQ(wire(Protocol::token_flag_512, 480), 512U);
  EXPECT_EQ(wire(Protocol::token_flag_512, 14336), 30U * 512);
  EXPECT_EQ(wire(Protocol::checksum, 14338), 14344U);
  EXPECT_EQ(wire(Protocol::sentinel, 2), 8U);
  const MessageCost cost = find_protocol(Protocol::checksum).message_cost(7, 100, 3);
  EXPECT_EQ(cost.checksums, 3U);
  EXPECT_EQ(cost.puts, 10U);
  EXPECT_EQ(cost.put_bytes, 7U * 104 + 3 * 8);
  EXPECT_EQ(find_protocol(Protocol::checksum).message_cost(7, 100, 0).checksums, 1U);
  EXPECT_EQ(find_protocol(Protocol::checksum).message_cost(0, 100, 0).puts, 0U);
}

TEST(ProtocolsTest, ARowComesBackAndNothingBehindItIsTouched) {
  test::Random random(1);
  for (const RowProtocol* protocol : all_protocols()) {
    if (!protocol->decodes()) continue;
    for (std::uint64_t bytes = 1; bytes < 1100; bytes += bytes < 40 ? 1 : 37) {
      const WireRow wire{.bytes = bytes, .epoch = 5 + bytes, .slot = 1};
      Window window(*protocol, wire);
      const auto row = random_bytes(bytes, random);
      const std::uint32_t sum = protocol->encode(wire, row.data(), window.data(), 7);
      std::vector<std::byte> got(bytes + 1, std::byte{0x55});
      std::uint32_t other = 7;
      ASSERT_TRUE(protocol->decode(wire, window.data(), got.data(), other));
      EXPECT_EQ(sum, other);
      EXPECT_EQ(std::memcmp(row.data(), got.data(), bytes), 0) << bytes;
      EXPECT_EQ(got.back(), std::byte{0x55});
      other = 7;
      ASSERT_TRUE(protocol->decode(wire, window.data(), nullptr, other));
      EXPECT_EQ(sum, other);
    }
  }
}

// Every word of a row that is still what it was before: the row is not there, or its checksum is
// not that of the batch. Before: nothing, armed, or the row of an earlier epoch.
TEST(ProtocolsTest, AMissingWordIsSeen) {
  test::Random random(2);
  for (const RowProtocol* protocol : all_protocols()) {
    if (!protocol->decodes()) continue;
    // Of a block that is seen as one, all words are missing.
    const std::uint64_t step = protocol->row_grid() == kLineBytes ? 8 : protocol->row_grid();
    const WireRow wire{.bytes = 1000, .epoch = 12, .slot = 0};
    const WireRow before{.bytes = 1000, .epoch = 10, .slot = 0};
    const auto old_row = random_bytes(1000, random);
    const auto row = random_bytes(1000, random);
    for (const bool used : {false, true}) {
      if (used && protocol->arms()) continue;
      Window whole(*protocol, wire);
      const std::uint32_t sum = protocol->encode(wire, row.data(), whole.data(), 0);
      for (std::uint64_t at = 0; at < whole.bytes(); at += step) {
        Window torn(*protocol, wire);
        if (used) (void)protocol->encode(before, old_row.data(), torn.data(), 0);
        std::vector<std::byte> kept(torn.data() + at, torn.data() + at + step);
        std::memcpy(torn.data(), whole.data(), whole.bytes());
        std::memcpy(torn.data() + at, kept.data(), step);
        std::vector<std::byte> got(1000);
        std::uint32_t seen = 0;
        const bool there = protocol->decode(wire, torn.data(), got.data(), seen);
        const bool fits = protocol->checksum_word(wire, seen) == protocol->checksum_word(wire, sum);
        EXPECT_FALSE(there && (fits || !protocol->has_checksums()))
            << name(protocol->id()) << " at " << at;
      }
    }
  }
}

TEST(ProtocolsTest, TheChecksumIsOfItsEpoch) {
  const RowProtocol& protocol = find_protocol(Protocol::checksum);
  const std::uint64_t word = protocol.checksum_word({.bytes = 8, .epoch = 3}, 77);
  EXPECT_EQ(word >> 32, narrow_tag(3));
  EXPECT_NE(word, protocol.checksum_word({.bytes = 8, .epoch = 4}, 77));
  // The same narrow tag: the sum differs.
  const std::uint64_t later = 3 + 0xffff'ffffULL;
  EXPECT_EQ(narrow_tag(later), narrow_tag(3));
  EXPECT_NE(word, protocol.checksum_word({.bytes = 8, .epoch = later}, 77));
}

TEST(ProtocolsTest, NarrowTagsAreNeverThoseOfFreshMemory) {
  EXPECT_EQ(narrow_tag(0xffff'fffe), 0xffff'ffffU);
  EXPECT_EQ(narrow_tag(0xffff'ffff), 1U);
  EXPECT_EQ(narrow_tag(0x1'0000'0000), 2U);
}

// What 16-bit and 32-bit formats read as NaN; another one for each slot.
TEST(ProtocolsTest, SentinelsAreNoNumbers) {
  for (int slot = 0; slot < 16; ++slot) {
    const std::uint64_t word = Sentinel::word(slot);
    for (int lane = 0; lane < 4; ++lane) {
      const auto bits = static_cast<std::uint16_t>(word >> 16 * lane);
      EXPECT_EQ(bits & 0x7f80, 0x7f80);
      EXPECT_NE(bits & 0x7f, 0);
    }
  }
  EXPECT_NE(Sentinel::word(0), Sentinel::word(1));
}

TEST(ProtocolsTest, ARowWithASentinelCollides) {
  const RowProtocol& protocol = find_protocol(Protocol::sentinel);
  std::vector<std::byte> row(100);
  const WireRow wire{.bytes = 100, .epoch = 1, .slot = 1};
  EXPECT_FALSE(protocol.collides(wire, row.data()));
  for (const std::size_t at : {0, 8, 88}) {
    auto marked = row;
    const std::uint64_t word = Sentinel::word(1);
    std::memcpy(marked.data() + at, &word, 8);
    EXPECT_TRUE(protocol.collides(wire, marked.data())) << at;
    EXPECT_FALSE(protocol.collides({.bytes = 100, .epoch = 1, .slot = 0}, marked.data()));
  }
}

// A sum does not tell one NaN from another.
TEST(ProtocolsTest, AnOutputWithASentinelArrivesAsAnotherNaN) {
  const RowProtocol& protocol = find_protocol(Protocol::sentinel);
  const WireRow wire{.bytes = 16, .epoch = 1, .slot = 1, .is_output = true};
  const std::array<std::uint64_t, 2> row = {5, Sentinel::word(1)};
  std::array<std::uint64_t, 2> sent = {};
  auto* to = reinterpret_cast<std::byte*>(sent.data());
  protocol.arm(1, to, sizeof(sent));
  (void)protocol.encode(wire, reinterpret_cast<const std::byte*>(row.data()), to, 0);
  std::array<std::uint64_t, 2> got = {};
  std::uint32_t sum = 0;
  ASSERT_TRUE(protocol.decode(wire, to, reinterpret_cast<std::byte*>(got.data()), sum));
  EXPECT_EQ(got[0], 5U);
  EXPECT_NE(got[1], row[1]);
  for (int lane = 0; lane < 4; ++lane) {
    const auto bits = static_cast<std::uint16_t>(got[1] >> 16 * lane);
    EXPECT_TRUE((bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0) << lane;
  }
}

}  // namespace
}  // namespace ubep
