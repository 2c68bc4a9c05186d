#include "protocol/segment_layout.hpp"

#include "base/entry.hpp"
#include "base/math.hpp"

namespace ubep {

static_assert(sizeof(Entry) == 12, "entries() computes offsets with it");
static_assert(kFabricHeaderBytes % kLineBytes == 0, "words are whole lines");

std::uint64_t SegmentLayout::add(std::uint64_t size, std::uint64_t alignment) {
  const std::uint64_t offset = round_up(bytes_, alignment);
  bytes_ = checked_add(offset, size);
  return offset;
}

SegmentLayout::SegmentLayout(const GroupConfig& config, int rank)
    : slots_(config.slots), per_slot_(static_cast<std::size_t>(config.slots)) {
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
    if (config.bsp || config.returns)
      back_bytes_ = round_up(checked_mul(max_entries_, config.max_stride), kPageBytes);
    inbox_bytes_ = std::max(
        checked_mul(static_cast<std::uint64_t>(slots_), checked_add(y_bytes_, back_bytes_)),
        kPageBytes);
  }

  op_ = add(4 * static_cast<std::uint64_t>(slots_) * sizeof(OpLine), kLineBytes);
  const std::uint64_t words = config.push ? 4 + size : 3;
  for (Slot& slot : per_slot_) slot.words = add(words * kLineBytes, kLineBytes);
  for (Slot& slot : per_slot_) {
    slot.off = add(off_bytes_, kLineBytes);
    slot.counts = add(counts_bytes_, kLineBytes);
    // Room to whole lines: entries may be stored with non-temporal stores.
    slot.entries = add(round_up(checked_mul(max_entries_, sizeof(Entry)), kLineBytes), kLineBytes);
  }
  for (Slot& slot : per_slot_) slot.x = add(x_bytes_, kPageBytes);
  for (Slot& slot : per_slot_) {
    slot.bases = add(bases_bytes_, kLineBytes);
  }
  for (Slot& slot : per_slot_) slot.y = add(y_bytes_, kPageBytes);
  bytes_ = round_up(bytes_, kPageBytes);
}

}  // namespace ubep
