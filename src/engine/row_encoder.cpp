#include "engine/row_encoder.hpp"

#include <cstring>

#include "base/math.hpp"

namespace ubep {
namespace {

constexpr std::uint64_t kPayloadAlignment = 8;

}  // namespace

void make_sent_row_layout(const Input& in, Quant quant, SentRowLayout& layout) {
  layout.row = RowFormat::of(quant, static_cast<std::size_t>(in.x.hidden));
  layout.row_bytes =
      quant == Quant::none ? static_cast<std::uint64_t>(in.x.row_bytes()) : layout.row.bytes();
  layout.bytes = layout.row_bytes;
  layout.payloads.resize(in.payloads.size());
  for (std::size_t i = 0; i < in.payloads.size(); ++i) {
    const Payload& payload = in.payloads[i];
    const std::uint64_t offset = round_up(layout.bytes, kPayloadAlignment);
    layout.payloads[i].name.assign(payload.name);
    layout.payloads[i].offset = static_cast<std::int64_t>(offset);
    layout.payloads[i].bytes = payload.bytes;
    layout.bytes = offset + static_cast<std::uint64_t>(payload.bytes);
  }
}

void RowEncoder::begin(const Input& in, Quant quant) {
  quant_ = quant;
  payloads_.clear();
  if (quant == Quant::none && in.payloads.empty()) return;
  x_ = in.x;
  payloads_.assign(in.payloads.begin(), in.payloads.end());
  make_sent_row_layout(in, quant, layout_);
}

void RowEncoder::encode(std::int64_t token, std::byte* to) const {
  const std::byte* row = x_.row(token);
  std::uint64_t end = layout_.row_bytes;
  if (quant_ == Quant::none) {
    std::memcpy(to, row, end);
  } else {
    encode_row(quant_, {row, static_cast<std::size_t>(x_.hidden), x_.dtype}, to);
  }
  for (std::size_t i = 0; i < payloads_.size(); ++i) {
    const Payload& payload = payloads_[i];
    const auto at = static_cast<std::uint64_t>(layout_.payloads[i].offset);
    std::memset(to + end, 0, at - end);  // not what another dispatch has left
    const std::int64_t stride = payload.stride_bytes != 0 ? payload.stride_bytes : payload.bytes;
    std::memcpy(to + at, static_cast<const std::byte*>(payload.data) + token * stride,
                static_cast<std::size_t>(payload.bytes));
    end = at + static_cast<std::uint64_t>(payload.bytes);
  }
}

}  // namespace ubep
