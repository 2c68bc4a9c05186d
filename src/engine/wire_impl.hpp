// Pushed rows in the form that a protocol gives them (src/protocol/row_protocol.hpp): a source
// writes them into its window of the owner's inbox; the owner takes them out as they become whole,
// nobody waits for `sent`. And `fence`, which stores `sent` after all acknowledgements.
//
// `sent` is stored behind the rows all the same. It is the verdict when a source is lost, and
// announces rows that cannot be told from nothing (armed windows).
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

// At set-up: refuses a fabric that cannot carry the protocol, and arms the own windows.
template <Fabric F>
void EngineImpl<F>::begin_windows(std::uint64_t first) {
  const std::string refusal = protocol_.refusal(fabric_.facts());
  if (!refusal.empty()) throw Error(ErrorCode::setup, refusal);
  for (Slot& slot : slots_) slot.scrubbed = slot.back_scrubbed = first;
  if (decodes_ && config_.returns && fabric_.facts().moves_rows) {
    scratch_bytes_ = static_cast<std::size_t>(config_.max_topk) * config_.max_stride;
    scratch_ = PrivateRows(kMaxLanes * scratch_bytes_, PrivateRows::Use::sparse);
  }
  if (!arms_ || !fabric_.facts().moves_rows) return;
  for (int s = 0; s < config_.slots; ++s) {
    for (const Range& all : {own().windows(s), own().back_windows(s)}) {
      protocol_.arm(s, fabric_.inbox(all), all.bytes);
    }
  }
}

// Peers may make their engines, and push, before this one is made: they wait for this.
template <Fabric F>
void EngineImpl<F>::tell_windows_armed() {
  if (told_armed_ || !arms_) return;
  told_armed_ = true;
  for (int s = 0; s < config_.slots; ++s) {
    // publishes: sentinels in all windows of the slot, to next_slot() of every peer; without the
    // order they would be stored over rows that have arrived.
    fabric_.store_flag(own().armed(s), first_ + 1);
  }
}

// Whether the windows of `rank` were armed after their last use before `epoch`, which is over.
template <Fabric F>
bool EngineImpl<F>::windows_armed(int rank, int slot, std::uint64_t epoch) const {
  const bool is_first = epoch - first_ <= slots_.size();
  // Not told because made together: armed before any operation.
  const std::uint64_t needed = is_first ? first_ : epoch - slots_.size();
  // acquires: the sentinels in my window there; my rows are stored over them.
  return fabric_.load_flag(rank, layout(rank).armed(slot)) > needed;
}

// When all rows of a dispatch are here, and all that any source put before them: nothing is on its
// way to the slot's windows.
template <Fabric F>
void EngineImpl<F>::tidy_windows(const HandleState& h) {
  Slot& slot = slot_of(h);
  const bool moves = fabric_.facts().moves_rows;
  if (arms_) {
    const Range all = own().windows(h.slot);
    if (slot.dirty && moves) protocol_.arm(h.slot, fabric_.inbox(all), all.bytes);
    // publishes: sentinels in all windows of the slot, to mark_rows() of every peer; without the
    // order they would be stored over rows of the next epoch.
    fabric_.store_flag(own().armed(h.slot), h.epoch + 1);
  }
  slot.dirty = false;
  if (!protocol_.tags_are_narrow() || h.epoch - slot.scrubbed < scrub_every_) return;
  slot.scrubbed = h.epoch;
  const Range old = protocol_.has_checksums() ? own().checksums(h.slot) : own().windows(h.slot);
  if (moves) fill_words(fabric_.inbox(old), 0, words_of(old.bytes));
}

// Armed windows: which of my tokens, and which owners, cannot do with the sentinel.
template <Fabric F>
void EngineImpl<F>::mark_rows(Op& op) {
  const HandleState& h = *op.handle;
  const WireRow wire = wire_row(op);
  const std::size_t ranks_at = (static_cast<std::size_t>(config_.max_tokens) + 63) / 64;
  std::vector<std::uint64_t>& marks = op.marks[static_cast<std::size_t>(rank_)];
  marks.assign(own().marks(h.slot).bytes / sizeof(std::uint64_t), 0);
  const auto set = [&](std::size_t word, std::size_t bit) {
    marks[word] |= std::uint64_t{1} << bit;
    op.line.marks = 1;
  };
  for (std::uint32_t t = 0; t < op.line.tokens; ++t) {
    if (h.routed->send.crosses[t] == 0 || !fabric_.facts().moves_rows) continue;
    if (protocol_.collides(wire, h.x.row(t))) set(t / 64, t % 64);
  }
  fabric_.work({Work::Kind::verify, op.line.tokens * wire.bytes});
  for (int r = 0; r < config_.size; ++r) {
    if (h.routed->outgoing[static_cast<std::size_t>(r)].num_rows() == 0 || r == rank_) continue;
    const bool untold = made_together_ && h.epoch - first_ <= slots_.size();
    const auto rank = static_cast<std::size_t>(r);
    if (!untold && !windows_armed(r, h.slot, h.epoch)) set(ranks_at + rank / 64, rank % 64);
  }
  if (op.line.marks == 0) return;
  const Range range = own().marks(h.slot);
  std::memcpy(fabric_.claim(range), marks.data(), range.bytes);
  fabric_.commit(range, Store::near);  // pub publishes it
}

// Copies a source's marks, if it has any; they follow its op line. False: not here yet.
template <Fabric F>
bool EngineImpl<F>::read_marks(Op& op, int q) {
  const OpLine& theirs = op.theirs[static_cast<std::size_t>(q)];
  std::vector<std::uint64_t>& marks = op.marks[static_cast<std::size_t>(q)];
  if (theirs.marks == 0 || !arms_ || !marks.empty()) return true;
  const Range range = layout(q).marks(op.handle->slot);
  const std::byte* data = fabric_.acquire(q, range);
  if (data == nullptr) return false;
  marks.resize(range.bytes / sizeof(std::uint64_t));
  std::memcpy(marks.data(), data, range.bytes);
  fabric_.release(q, range);
  return true;
}

template <Fabric F>
bool EngineImpl<F>::is_marked(const Op& op, int q, std::uint32_t token) const {
  const std::vector<std::uint64_t>& marks = op.marks[static_cast<std::size_t>(q)];
  if (marks.empty()) return false;
  const auto bit = [&](std::size_t first, std::size_t i) {
    return (marks[first + i / 64] >> i % 64 & 1) != 0;
  };
  const std::size_t ranks_at = (static_cast<std::size_t>(config_.max_tokens) + 63) / 64;
  return bit(0, token) || bit(ranks_at, static_cast<std::size_t>(rank_));
}

template <Fabric F>
int EngineImpl<F>::push_encoded(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  const auto owner = static_cast<int>(tile.peer);
  const SourceRows& out = h.routed->outgoing[tile.peer];
  const WireRow wire = wire_row(op);
  const std::uint64_t bytes = protocol_.wire_bytes(wire.bytes);
  const std::uint64_t stride = protocol_.wire_stride(wire.bytes);
  const std::uint32_t batch = protocol_.batch_rows(config_.checksum_rows, out.num_rows());
  const std::uint32_t begin = tile.next;
  std::uint32_t sum = 0;
  for (; tile.next < tile.end; ++tile.next) {
    const Range range = layout(owner).wire(h.slot, rank_, tile.next * stride, bytes);
    std::byte* to = fabric_.claim_at(owner, range);
    const std::byte* row = h.x.row(out.row_token[tile.next]);
    if (fabric_.facts().moves_rows) sum = protocol_.encode(wire, row, to, sum);
    fabric_.commit_at(owner, range, Store::near);
    const bool ends_batch = (tile.next + 1) % batch == 0 || tile.next + 1 == tile.end;
    if (!protocol_.has_checksums() || !ends_batch) continue;
    put_checksum(wire, owner, layout(owner).checksum(h.slot, rank_, tile.next / batch), sum);
    sum = 0;
  }
  const std::uint32_t done = tile.end - begin;
  op.copied.add_relaxed(done * wire.bytes);
  if (protocol_.has_checksums()) fabric_.work({Work::Kind::verify, done * wire.bytes});
  end_push_tile(op, owner, done);
  return static_cast<int>(done);
}

template <Fabric F>
void EngineImpl<F>::put_checksum(const WireRow& wire, int to, Range range, std::uint32_t sum) {
  std::byte* word = fabric_.claim_at(to, range);
  if (fabric_.facts().moves_rows) {
    // publishes: the rows of the batch, to decode_batch() or take_returned(); without the order
    // they find that the rows do not fit yet, and look again.
    SharedWord(word).store_release(protocol_.checksum_word(wire, sum));
  }
  fabric_.commit_at(to, range, Store::near);
}

// An output, by itself: a token wants its rows one by one, so a checksum is that of one row.
template <Fabric F>
void EngineImpl<F>::return_encoded(const Op& op, int q, std::uint64_t entry, const std::byte* row) {
  const HandleState& h = *op.handle;
  const WireRow wire = wire_row(op);
  const Range range = layout(q).back_wire(h.slot, entry * protocol_.wire_stride(wire.bytes),
                                          protocol_.wire_bytes(wire.bytes));
  std::byte* to = fabric_.claim_at(q, range);
  const std::uint32_t sum = fabric_.facts().moves_rows ? protocol_.encode(wire, row, to, 0) : 0;
  fabric_.commit_at(q, range, Store::near);
  if (!protocol_.has_checksums()) return;
  fabric_.work({Work::Kind::verify, wire.bytes});
  put_checksum(wire, q, layout(q).back_checksum(h.slot, entry), sum);
}

// An output that has come back whole, in `to`; else null.
template <Fabric F>
const std::byte* EngineImpl<F>::take_returned(const Op& op, int owner, std::uint64_t entry,
                                              std::byte* to) {
  const HandleState& h = *op.handle;
  const bool moves = fabric_.facts().moves_rows;
  WireRow wire = wire_row(op);
  wire.announced = arms_ && slots_[static_cast<std::size_t>(h.slot)].back_dirty;
  // acquires: all outputs of the owner; only `out` tells of this one.
  if (wire.announced && fabric_.load_flag(owner, layout(owner).out(h.slot)) < 2 * h.epoch) {
    return nullptr;
  }
  std::uint64_t told = 0;
  if (protocol_.has_checksums()) {
    const std::byte* word = fabric_.incoming(owner, own().back_checksum(h.slot, entry));
    if (word == nullptr) return nullptr;
    // acquires: the row, where the fabric keeps their order; else the sum tells.
    if (moves) told = SharedWord(word).load_acquire();
    if (moves && told >> 32 != narrow_tag(wire.epoch)) return nullptr;
    fabric_.work({Work::Kind::verify, wire.bytes});
  }
  const Range range = own().back_wire(h.slot, entry * protocol_.wire_stride(wire.bytes),
                                      protocol_.wire_bytes(wire.bytes));
  const std::byte* from = fabric_.incoming(owner, range);
  std::uint32_t sum = 0;
  if (from == nullptr || !moves) return from;
  if (!protocol_.decode(wire, from, to, sum)) return nullptr;
  if (protocol_.has_checksums() && protocol_.checksum_word(wire, sum) != told) return nullptr;
  return to;
}

// It has been summed: its place is free for another epoch's.
template <Fabric F>
void EngineImpl<F>::free_returned(const Op& op, int owner, std::uint64_t entry) {
  const HandleState& h = *op.handle;
  const std::uint64_t bytes = wire_row(op).bytes;
  const Range range =
      own().back_wire(h.slot, entry * protocol_.wire_stride(bytes), protocol_.wire_bytes(bytes));
  if (arms_) {
    if (fabric_.facts().moves_rows) protocol_.arm(h.slot, fabric_.inbox(range), range.bytes);
    fabric_.work({Work::Kind::copy, bytes});
  }
  fabric_.taken(owner, range);
  if (protocol_.has_checksums()) fabric_.taken(owner, own().back_checksum(h.slot, entry));
}

// The end of a combine. What a lost owner has put may lie anywhere: the next combine of the slot
// does not rely on sentinels, and when it is over all are stored again.
template <Fabric F>
void EngineImpl<F>::tidy_returned(const Op& op) {
  const HandleState& h = *op.handle;
  Slot& slot = slots_[static_cast<std::size_t>(h.slot)];
  const bool moves = fabric_.facts().moves_rows;
  const bool was_dirty = slot.back_dirty;
  slot.back_dirty = !op.absent.empty();
  const Range all = own().back_windows(h.slot);
  if (arms_ && was_dirty && !slot.back_dirty && moves) {
    protocol_.arm(h.slot, fabric_.inbox(all), all.bytes);
  }
  if (!protocol_.tags_are_narrow() || h.epoch - slot.back_scrubbed < scrub_every_) return;
  slot.back_scrubbed = h.epoch;
  const Range old = protocol_.has_checksums() ? own().back_checksums(h.slot) : all;
  if (moves) fill_words(fabric_.inbox(old), 0, words_of(old.bytes));
}

// Owners that died, left or failed: `out` says whether their outputs are all here.
template <Fabric F>
int EngineImpl<F>::look_at_lost_owners(Op& op) {
  int done = 0;
  op.decoding.for_each([&](int q) {
    if (!lost_.contains(q)) return;
    op.decoding.erase(q);
    ++done;
    // acquires: nothing more; tiles find the outputs.
    if (fabric_.load_flag(q, layout(q).out(op.handle->slot)) >= 2 * op.line.epoch) return;
    op.absent.insert(q);
    report_loss(op, q);
    // publishes: whose outputs are not awaited any more, to gather_token() on any lane.
    op.lost.store_release(op.absent);
  });
  return done;
}

// Where a received row goes; null: it has no place, beyond its expert's capacity.
template <Fabric F>
std::byte* EngineImpl<F>::place_of(const Op& op, int q, std::uint32_t row,
                                   std::size_t& group) const {
  const HandleState& h = *op.handle;
  const bool in_window = copies_at_once(h) || h.routed->options.path == Path::read;
  const std::uint64_t window = window_rows(*h.routed, rank_) * static_cast<std::uint64_t>(q);
  const std::uint64_t to = in_window ? window + row : row_index(h, q, row, group);
  const std::uint64_t limit = op.line.capacity;
  if (limit != 0 && to >= (group + 1) * limit) return nullptr;
  return const_cast<std::byte*>(h.received.base) +
         to * static_cast<std::uint64_t>(h.received.stride_bytes);
}

// Rows [tile.next, end), a batch, if all of them are here.
template <Fabric F>
bool EngineImpl<F>::decode_batch(Op& op, const Tile& tile, std::uint32_t end, std::size_t& group) {
  const HandleState& h = *op.handle;
  const auto q = static_cast<int>(tile.peer);
  const SourceRows& source = h.routed->receive.sources[tile.peer];
  const bool moves = fabric_.facts().moves_rows;
  WireRow wire = wire_row(op);
  const std::uint64_t stride = protocol_.wire_stride(wire.bytes);
  const std::uint32_t batch = protocol_.batch_rows(config_.checksum_rows, source.num_rows());
  const Range checksum = own().checksum(h.slot, q, tile.next / batch);
  std::uint64_t told = 0;
  if (protocol_.has_checksums()) {
    const std::byte* word = fabric_.incoming(q, checksum);
    if (word == nullptr) return false;
    // acquires: the rows of the batch, where the fabric keeps their order; else the sum tells.
    if (moves) told = SharedWord(word).load_acquire();
    if (moves && told >> 32 != narrow_tag(wire.epoch)) return false;
  }
  const auto place = [&](std::uint32_t row) {
    return own().wire(h.slot, q, row * stride, protocol_.wire_bytes(wire.bytes));
  };
  std::uint32_t sum = 0;
  std::uint64_t copied = 0;
  for (std::uint32_t row = tile.next; row < end; ++row) {
    wire.announced = is_marked(op, q, source.row_token[row]);
    // acquires: all rows of q; only `sent` tells of this one.
    if (wire.announced && fabric_.load_flag(q, layout(q).sent(h.slot, rank_)) < h.epoch) {
      return false;
    }
    std::byte* to = place_of(op, q, row, group);
    const std::byte* from = fabric_.incoming(q, place(row));
    if (from == nullptr || (moves && !protocol_.decode(wire, from, to, sum))) return false;
    if (to != nullptr) copied += wire.bytes;
  }
  if (protocol_.has_checksums()) {
    fabric_.work({Work::Kind::verify, (end - tile.next) * wire.bytes});
    if (moves && protocol_.checksum_word(wire, sum) != told) return false;
    fabric_.taken(q, checksum);
  }
  for (std::uint32_t row = tile.next; row < end; ++row) {
    if (moves && arms_) {
      protocol_.arm(h.slot, fabric_.inbox(place(row)), place(row).bytes);
    }
    fabric_.taken(q, place(row));
  }
  if (arms_) copied += (end - tile.next) * wire.bytes;
  fabric_.work({Work::Kind::copy, copied});
  return true;
}

// As far as rows are here: tried again later, row by row as they come.
template <Fabric F>
int EngineImpl<F>::decode_rows(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  const SourceRows& source = h.routed->receive.sources[tile.peer];
  const std::uint32_t batch = protocol_.batch_rows(config_.checksum_rows, source.num_rows());
  const std::uint32_t begin = tile.next;
  std::size_t group = 0;
  while (tile.next < tile.end) {
    // acquires: that its source was lost before it had sent its rows; they will be zero.
    if (op.lost.load_acquire(static_cast<int>(tile.peer))) {
      tile.next = tile.end;
      break;
    }
    const std::uint32_t end = std::min(tile.end, tile.next + batch);
    std::size_t next_group = group;
    if (!decode_batch(op, tile, end, next_group)) break;
    group = next_group;
    tile.next = end;
  }
  const std::uint32_t done = tile.next - begin;
  op.copied.add_relaxed(done * op.row_bytes);
  return static_cast<int>(done);
}

// Sources that died, left or failed: `sent` says whether their rows are all here.
template <Fabric F>
int EngineImpl<F>::look_at_lost_sources(Op& op) {
  int done = 0;
  op.decoding.for_each([&](int q) {
    if (!failed_.ok() || !lost_.contains(q)) return;
    const Fate fate = fate_of(op, q, layout(q).sent(op.handle->slot, rank_));
    if (fate == Fate::waiting) return;
    op.decoding.erase(q);
    ++done;
    if (fate == Fate::stored) return;  // tiles will find them
    op.unsent.insert(q);
    op.handle->sources.erase(q);
    report_loss(op, q);
    // publishes: whose rows are not awaited any more, to decode_rows() on any lane.
    op.lost.store_release(op.unsent);
  });
  return done;
}

// All own rows are put. True once their owners have been told, too.
template <Fabric F>
bool EngineImpl<F>::tell_rows(Op& op) {
  const Routed& routed = *op.handle->routed;
  if (is_bulk(routed)) barrier();
  if (!is_fenced(routed) && !is_bulk(routed)) return true;
  for (int r = 0; r < config_.size; ++r) {
    if (r == rank_ || routed.outgoing[static_cast<std::size_t>(r)].num_rows() == 0) continue;
    if (is_fenced(routed) && !lost_.contains(r) && !fabric_.flushed(r)) return false;
  }
  tell_rows_unfenced(op);
  return true;
}

// A release waits for nobody, so it relies on the order of the fabric's signal.
template <Fabric F>
void EngineImpl<F>::tell_rows_unfenced(Op& op) {
  const Routed& routed = *op.handle->routed;
  if (op.sent || !(is_fenced(routed) || is_bulk(routed))) return;
  if (is_bulk(routed) && op.tell_shares != 0) return;  // tell_peer() does it
  if (slices(routed) && !op.unplaced.empty()) return;  // then nothing is put yet
  for (int r = 0; r < config_.size; ++r) {
    if (r == rank_ || routed.outgoing[static_cast<std::size_t>(r)].num_rows() == 0) continue;
    if (op.unplaced.contains(r)) continue;
    // publishes: all my rows of this epoch, to look_for_rows() of their owner.
    fabric_.signal(r, own().sent(op.handle->slot, r), op.line.epoch);
  }
}

}  // namespace ubep
