// Where everything lies in a rank's segment: one list from which all offsets and the size follow.
//
//   fabric header | op lines [4N] | per slot: pub, out, done, base, sent [R], relayed [R],
//   summed [R], armed | per slot: off, counts, entries, marks, missing, lacking |
//   per slot: x |
//   per slot: bases, out of each expert | per slot: y
//
// x comes before the bases and y because only their sizes depend on the rank: x lies at the same
// offset in every segment. `base`, `sent` and `counts` exist where peers push, `armed` and `marks`
// where windows are armed, `relayed`, `summed` and `missing` with relay. The inbox, a memory of its
// own, holds per slot: rows | back (bsp: outputs that come back) | windows [R] | checksums [R] (of
// protocols whose rows are decoded) | the same two for outputs that come back, by entry | relayed
// tokens [R].
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/fabric_facts.hpp"
#include "base/group_config.hpp"
#include "protocol/op_line.hpp"

namespace ubep {

class SegmentLayout {
 public:
  SegmentLayout(const GroupConfig& config, int rank);

  std::uint64_t bytes() const { return bytes_; }

  // Words, one cache line each: offsets of a std::uint64_t.
  std::uint64_t op(std::uint64_t seq) const {
    return op_ + seq % (4 * static_cast<std::uint64_t>(slots_)) * sizeof(OpLine);
  }
  std::uint64_t pub(int slot) const { return at(slot).words; }
  std::uint64_t out(int slot) const { return at(slot).words + kLineBytes; }
  std::uint64_t done(int slot) const { return at(slot).words + 2 * kLineBytes; }
  std::uint64_t base(int slot) const { return at(slot).words + 3 * kLineBytes; }
  std::uint64_t sent(int slot, int dst) const {
    return at(slot).words + (4 + static_cast<std::uint64_t>(dst)) * kLineBytes;
  }

  // relay, from a gateway to ranks of its host: 2e = what `src` has for them of epoch e lies in my
  // inbox, 2e + 1 = it will not come.
  std::uint64_t relayed(int slot, int src) const {
    return sent(slot, static_cast<int>(ranks_) + src);
  }
  // relay, from a gateway to a source: 2e = the sums of my host's rows are in its inbox, 2e + 1 =
  // they will not come.
  std::uint64_t summed(int slot, int dst) const {
    return sent(slot, 2 * static_cast<int>(ranks_) + dst);
  }

  // All my windows of this slot are armed. Its value: the epoch that did it, + 1.
  std::uint64_t armed(int slot) const { return at(slot).armed; }

  // The record: off [R + 1] u32, counts, entries; written before pub.
  Range offsets(int slot) const { return {at(slot).off, off_bytes_}; }
  // Rows per group over all owners: by rank (rank_major), or by expert position.
  Range counts(int slot, std::uint64_t groups) const { return {at(slot).counts, groups * 4}; }
  Range entries(int slot, std::uint64_t first, std::uint64_t count) const {
    return {at(slot).entries + first * 12, count * 12};
  }
  std::uint64_t max_entries() const { return max_entries_; }
  // Bits of tokens, then of ranks, whose rows are announced by `sent`.
  Range marks(int slot) const { return {at(slot).marks, marks_bytes_}; }

  // relay: bits of ranks that are missing in my sums; whose rows did not come (OpLine::lacks).
  Range missing(int slot) const { return {at(slot).missing, missing_bytes_}; }
  Range lacking(int slot) const { return {at(slot).missing + missing_bytes_, missing_bytes_}; }

  // Base table, written before out: where the rows of `src` begin, per group (local expert or 1).
  Range bases(int slot, int src, std::uint64_t groups) const {
    return {at(slot).bases + static_cast<std::uint64_t>(src) * groups * 4, groups * 4};
  }

  // Whose value is the epoch: the outputs of my `expert`-th local expert can be read.
  std::uint64_t out_expert(int slot, std::uint64_t expert) const {
    return at(slot).out_experts + expert * 8;
  }

  // Rows, `stride` bytes apart.
  Range x(int slot, std::uint64_t stride, std::uint64_t first, std::uint64_t count) const {
    return {at(slot).x + first * stride, count * stride};
  }
  Range y(int slot, std::uint64_t stride, std::uint64_t first, std::uint64_t count) const {
    return {at(slot).y + first * stride, count * stride};
  }
  // Everything of a slot that peers read.
  std::array<Range, 9> slot_areas(int slot) const {
    return {offsets(slot),
            marks(slot),
            missing(slot),
            lacking(slot),
            Range{at(slot).counts, counts_bytes_},
            entries(slot, 0, max_entries_),
            Range{at(slot).bases, bases_bytes_},
            x(slot, 1, 0, x_bytes_),
            y(slot, 1, 0, y_bytes_)};
  }
  std::uint64_t x_area_bytes() const { return x_bytes_; }
  std::uint64_t y_area_bytes() const { return y_bytes_; }

  // The inbox; 0 bytes when nobody pushes. Rows of expert layouts lie where the owner's plan has
  // them, otherwise in blocks by source.
  std::uint64_t inbox_bytes() const { return inbox_bytes_; }
  Range rows(int slot, std::uint64_t stride, std::uint64_t first, std::uint64_t count) const {
    return {static_cast<std::uint64_t>(slot) * rows_bytes_ + first * stride, count * stride};
  }
  Range back(int slot, std::uint64_t stride, std::uint64_t first, std::uint64_t count) const {
    return {static_cast<std::uint64_t>(slots_) * rows_bytes_ +
                static_cast<std::uint64_t>(slot) * back_bytes_ + first * stride,
            count * stride};
  }
  // relay: tokens of `src` for ranks of my host, each at its place in x.
  Range relay(int slot, int src, std::uint64_t stride, std::uint64_t token,
              std::uint64_t count) const {
    return {relay_ + window_of(slot, src) * x_bytes_ + token * stride, count * stride};
  }
  // Bytes of the window of `src`, and the whole of it; all windows of a slot.
  Range wire(int slot, int src, std::uint64_t offset, std::uint64_t bytes) const {
    return {wire_ + window_of(slot, src) * window_bytes_ + offset, bytes};
  }
  Range windows(int slot) const {
    return {wire_ + window_of(slot, 0) * window_bytes_, ranks_ * window_bytes_};
  }
  // The word of a batch of `src`; all of a slot.
  Range checksum(int slot, int src, std::uint64_t batch) const {
    return {checks_ + window_of(slot, src) * checks_bytes_ + batch * 8, 8};
  }
  Range checksums(int slot) const {
    return {checks_ + window_of(slot, 0) * checks_bytes_, ranks_ * checks_bytes_};
  }
  // Outputs that come back in a protocol's form, and the words of single ones.
  Range back_wire(int slot, std::uint64_t offset, std::uint64_t bytes) const {
    return {back_wire_ + static_cast<std::uint64_t>(slot) * back_wire_bytes_ + offset, bytes};
  }
  Range back_windows(int slot) const { return back_wire(slot, 0, back_wire_bytes_); }
  Range back_checksum(int slot, std::uint64_t entry) const {
    return {back_checks_ + static_cast<std::uint64_t>(slot) * back_checks_bytes_ + entry * 8, 8};
  }
  Range back_checksums(int slot) const {
    return {back_checksum(slot, 0).offset, back_checks_bytes_};
  }

 private:
  struct Slot {
    std::uint64_t words, armed, off, counts, entries, marks, missing, bases, out_experts, x, y;
  };
  const Slot& at(int slot) const { return per_slot_[static_cast<std::size_t>(slot)]; }
  std::uint64_t add(std::uint64_t size, std::uint64_t alignment);
  void lay_out_inbox(const GroupConfig& config, int rank);
  std::uint64_t window_of(int slot, int src) const {
    return static_cast<std::uint64_t>(slot) * ranks_ + static_cast<std::uint64_t>(src);
  }

  int slots_;
  std::uint64_t ranks_;
  std::uint64_t bytes_ = kFabricHeaderBytes;
  std::uint64_t op_ = 0;
  std::uint64_t off_bytes_ = 0;
  std::uint64_t max_entries_ = 0;
  std::uint64_t bases_bytes_ = 0;
  std::uint64_t x_bytes_ = 0;
  std::uint64_t y_bytes_ = 0;
  std::uint64_t counts_bytes_ = 0;
  std::uint64_t back_bytes_ = 0;
  std::uint64_t marks_bytes_ = 0;
  std::uint64_t rows_bytes_ = 0;
  std::uint64_t wire_ = 0;
  std::uint64_t window_bytes_ = 0;
  std::uint64_t checks_ = 0;
  std::uint64_t checks_bytes_ = 0;
  std::uint64_t back_wire_ = 0;
  std::uint64_t back_wire_bytes_ = 0;
  std::uint64_t back_checks_ = 0;
  std::uint64_t back_checks_bytes_ = 0;
  std::uint64_t relay_ = 0;
  std::uint64_t missing_bytes_ = 0;
  std::uint64_t inbox_bytes_ = 0;
  std::vector<Slot> per_slot_;
};

}  // namespace ubep
