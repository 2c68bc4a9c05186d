// What a dispatch sends for each token, where that is not the caller's row as it is: a quantised
// row (memory/row_codec.hpp), then the payloads that travel with it, each at a multiple of 8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/row_codec.hpp"
#include "ubep/dispatch.hpp"
#include "ubep/types.hpp"

namespace ubep {

// Where things lie in a sent row, and how long it is.
struct SentRowLayout {
  RowFormat row;
  std::uint64_t row_bytes = 0;
  std::vector<PayloadPlace> payloads;
  std::uint64_t bytes = 0;
};
// Reuses the memory of `layout`.
void make_sent_row_layout(const Input& in, Quant quant, SentRowLayout& layout);

class RowEncoder {
 public:
  // `in` must live as long as rows are encoded.
  void begin(const Input& in, Quant quant);

  bool is_plain() const { return quant_ == Quant::none && payloads_.empty(); }
  const SentRowLayout& layout() const { return layout_; }
  // Plain stores.
  void encode(std::int64_t token, std::byte* to) const;
  // Of all payloads of a token, with what aligns them.
  std::uint64_t payload_bytes() const { return layout_.bytes - layout_.row_bytes; }
  std::uint64_t source_bytes() const { return static_cast<std::uint64_t>(x_.row_bytes()); }

 private:
  ConstRows x_;
  Quant quant_ = Quant::none;
  std::vector<Payload> payloads_;
  SentRowLayout layout_;
};

}  // namespace ubep
