#include "protocol/segment_layout.hpp"

#include "base/entry.hpp"
#include "base/math.hpp"
#include "protocol/protocols.hpp"

namespace ubep {

static_assert(sizeof(Entry) == 12, "entries() computes offsets with it");
static_assert(kFabricHeaderBytes % kLineBytes == 0, "words are whole lines");

std::uint64_t SegmentLayout::add(std::uint64_t size, std::uint64_t alignment) {
  const std::uint64_t offset = round_up(bytes_, alignment);
  bytes_ = checked_add(offset, size);
  return offset;
}

void SegmentLayout::lay_out_inbox(const GroupConfig& config, int rank) {
  const RowProtocol& protocol = find_protocol(config.protocol);
  const auto slots = static_cast<std::uint64_t>(slots_);
  if (!protocol.decodes() || config.bsp) rows_bytes_ = y_bytes_;
  if (config.bsp || (config.returns && !protocol.decodes())) {
    back_bytes_ = round_up(checked_mul(max_entries_, config.max_stride), kPageBytes);
  }
  wire_ = checks_ = checked_mul(slots, checked_add(rows_bytes_, back_bytes_));
  if (protocol.decodes()) {
    const std::uint64_t rows = config.max_rows_from_source(rank, config.max_topk);
    const std::uint64_t stride = protocol.wire_stride(config.max_row_bytes);
    window_bytes_ = round_up(checked_mul(rows, stride), kWireGrid);
    checks_ = round_up(checked_add(wire_, checked_mul(slots * ranks_, window_bytes_)), kPageBytes);
    if (protocol.has_checksums()) {
      const auto batch = static_cast<std::uint64_t>(config.checksum_rows);
      checks_bytes_ = round_up(8 * (batch == 0 ? 1 : rows / batch + 1), kLineBytes);
    }
  }
  back_wire_ = back_checks_ =
      round_up(checked_add(checks_, checked_mul(slots * ranks_, checks_bytes_)), kPageBytes);
  if (protocol.decodes() && config.returns) {
    const std::uint64_t stride = protocol.wire_stride(config.max_row_bytes);
    back_wire_bytes_ = round_up(checked_mul(max_entries_, stride), kPageBytes);
    back_checks_ = checked_add(back_wire_, checked_mul(slots, back_wire_bytes_));
    if (protocol.has_checksums()) back_checks_bytes_ = round_up(8 * max_entries_, kLineBytes);
  }
  relay_ = round_up(checked_add(back_checks_, checked_mul(slots, back_checks_bytes_)), kPageBytes);
  const std::uint64_t relayed = config.relay ? checked_mul(slots * ranks_, x_bytes_) : 0;
  inbox_bytes_ = std::max(checked_add(relay_, relayed), kPageBytes);
}

SegmentLayout::SegmentLayout(const GroupConfig& config, int rank)
    : slots_(config.slots),
      ranks_(static_cast<std::uint64_t>(config.size)),
      per_slot_(static_cast<std::size_t>(config.slots)) {
  const auto size = static_cast<std::uint64_t>(config.size);
  const auto groups = static_cast<std::uint64_t>(std::max(1, config.experts.num_local(rank)));
  max_entries_ = checked_mul(static_cast<std::uint64_t>(config.max_tokens),
                             static_cast<std::uint64_t>(config.max_topk));
  bases_bytes_ = size * groups * sizeof(std::uint32_t);
  off_bytes_ = (size + 1) * sizeof(std::uint32_t);
  x_bytes_ = round_up(checked_mul(static_cast<std::uint64_t>(config.max_tokens), config.max_stride),
                      kPageBytes);
  y_bytes_ = round_up(checked_mul(config.max_rows(rank), config.max_stride), kPageBytes);

  if (config.push) {
    const auto experts = static_cast<std::uint64_t>(config.experts.num_experts());
    counts_bytes_ = std::max(size, experts) * sizeof(std::uint32_t);
    lay_out_inbox(config, rank);
  }
  const bool arms = config.push && find_protocol(config.protocol).arms();
  if (arms) {
    const auto tokens = static_cast<std::uint64_t>(config.max_tokens);
    marks_bytes_ = ((tokens + 63) / 64 + (size + 63) / 64) * 8;
  }

  if (config.relay) missing_bytes_ = (size + 63) / 64 * 8;

  op_ = add(4 * static_cast<std::uint64_t>(slots_) * sizeof(OpLine), kLineBytes);
  const std::uint64_t words = (config.push ? 4 + size : 3) + (config.relay ? 2 * size : 0);
  for (Slot& slot : per_slot_) {
    slot.words = add(words * kLineBytes, kLineBytes);
    slot.armed = arms ? add(kLineBytes, kLineBytes) : 0;
  }
  for (Slot& slot : per_slot_) {
    slot.off = add(off_bytes_, kLineBytes);
    slot.counts = add(counts_bytes_, kLineBytes);
    // Room to whole lines: entries may be stored with non-temporal stores.
    slot.entries = add(round_up(checked_mul(max_entries_, sizeof(Entry)), kLineBytes), kLineBytes);
    slot.marks = add(marks_bytes_, kLineBytes);
    slot.missing = add(2 * missing_bytes_, kLineBytes);
  }
  for (Slot& slot : per_slot_) slot.x = add(x_bytes_, kPageBytes);
  for (Slot& slot : per_slot_) {
    slot.bases = add(bases_bytes_, kLineBytes);
    slot.out_experts = add(8 * groups, kLineBytes);
  }
  for (Slot& slot : per_slot_) slot.y = add(y_bytes_, kPageBytes);
  bytes_ = round_up(bytes_, kPageBytes);
}

}  // namespace ubep
