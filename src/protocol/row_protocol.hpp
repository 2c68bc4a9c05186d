// How the owner of pushed rows learns that they have arrived: one object without state for each
// protocol. The engine asks it per row and per message, never per word.
//
// A protocol either puts bare rows at their place and lets a word tell of all of them (`signalled`,
// `acknowledged`), or it writes them in a form of its own into the source's window of the inbox,
// where the owner looks until each row is whole, and takes it out (`decoded`).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/fabric_facts.hpp"
#include "base/math.hpp"
#include "ubep/types.hpp"

namespace ubep {

// Rows of windows begin on lines, windows on this: whatever an operation's hidden size, a byte of
// a window is a flag in every epoch, or in none.
inline constexpr std::uint64_t kWireGrid = 512;

struct WireRow {
  std::uint64_t bytes = 0;  // of the row
  std::uint64_t epoch = 0;
  int slot = 0;
  bool announced = false;  // decode: another word has said that it is whole
  bool is_output = false;  // encode: it will be summed, so one NaN is as good as another
};

// What a message of rows from one source to one owner puts into the inbox.
struct MessageCost {
  std::uint64_t puts = 0;       // rows and checksums
  std::uint64_t put_bytes = 0;  // of both
  std::uint64_t checksums = 0;
  std::uint64_t signals = 0;
};

class RowProtocol {
 public:
  enum class Arrival : std::uint8_t { signalled, acknowledged, decoded };

  virtual Protocol id() const = 0;
  virtual Arrival arrival() const = 0;
  // "" or why this fabric cannot carry it.
  virtual std::string refusal(const FabricFacts& /*facts*/) const { return ""; }

  // Of a row: what is put, and from one row to the next.
  virtual std::uint64_t wire_bytes(std::uint64_t row_bytes) const {
    return round_up(row_bytes, kLineBytes);
  }
  std::uint64_t wire_stride(std::uint64_t row_bytes) const {
    return round_up(wire_bytes(row_bytes), row_grid());
  }
  virtual std::uint64_t row_grid() const { return kLineBytes; }

  // decoded: `sum` runs over the rows of a batch, from 0. decode() is false while the row is not
  // whole, and `row` holds anything then; null: the row is not wanted.
  virtual std::uint32_t encode(const WireRow& /*wire*/, const std::byte* /*row*/, std::byte* /*to*/,
                               std::uint32_t sum) const {
    return sum;
  }
  virtual bool decode(const WireRow& /*wire*/, const std::byte* /*from*/, std::byte* /*row*/,
                      std::uint32_t& /*sum*/) const {
    return true;
  }

  // A word behind each batch tells of its rows.
  virtual bool has_checksums() const { return false; }
  virtual std::uint64_t checksum_word(const WireRow& /*wire*/, std::uint32_t /*sum*/) const {
    return 0;
  }
  // Windows hold something that says that nothing has come: stored by their owner.
  virtual bool arms() const { return false; }
  virtual void arm(int /*slot*/, std::byte* /*to*/, std::uint64_t /*bytes*/) const {}
  // Such a row cannot be told from nothing: it is announced by a word instead.
  virtual bool collides(const WireRow& /*wire*/, const std::byte* /*row*/) const { return false; }
  // Tags that come again after 2^32 - 1 epochs: older ones are wiped out before.
  virtual bool tags_are_narrow() const { return false; }

  bool decodes() const { return arrival() == Arrival::decoded; }
  // Rows of a batch; `asked` 0 = all of a message.
  std::uint32_t batch_rows(int asked, std::uint32_t rows) const {
    if (!has_checksums()) return 1;
    return std::max(asked == 0 ? rows : static_cast<std::uint32_t>(asked), 1U);
  }
  MessageCost message_cost(std::uint32_t rows, std::uint64_t row_bytes, int asked) const {
    if (rows == 0) return {};
    const std::uint32_t batch = batch_rows(asked, rows);
    const std::uint64_t checks = has_checksums() ? (rows - 1) / batch + 1 : 0;
    return {.puts = rows + checks,
            .put_bytes = rows * wire_bytes(row_bytes) + checks * sizeof(std::uint64_t),
            .checksums = checks,
            .signals = 1};
  }

 protected:
  ~RowProtocol() = default;  // constants, which nobody destroys
};

// 1..2^32 - 1; never 0, which is what lies in fresh memory.
constexpr std::uint32_t narrow_tag(std::uint64_t epoch) {
  return static_cast<std::uint32_t>(epoch % 0xffff'ffff + 1);
}

}  // namespace ubep
