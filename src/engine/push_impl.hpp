// Rows that a source puts into the inboxes of their owners: push, and the windows of bsp.
//
// rank_major and bsp: into a block of the source's own, at once. Expert layouts on push: at their
// final place, once the source knows it, by the counts of all sources or by the owner's base table.
#pragma once

#include "engine/engine_impl.hpp"
#include "plan/push_plan.hpp"

namespace ubep {

// Rows of one source's block in the inbox of `owner`.
template <Fabric F>
std::uint64_t EngineImpl<F>::window_rows(const Routed& routed, int owner) const {
  if (routed.shape.every_token) return static_cast<std::uint64_t>(config_.max_tokens);
  return config_.max_rows_from_source(owner, routed.shape.row_per_choice() ? routed.shape.topk : 1);
}

// Which row goes where, from the own plan: the owners will make the same list from the record.
template <Fabric F>
void EngineImpl<F>::plan_outgoing(Routed& routed) {
  const auto ranks = static_cast<std::size_t>(config_.size);
  routed.outgoing.resize(ranks);
  routed.counts.resize(ranks);
  for (int r = 0; r < config_.size; ++r) {
    if (r == rank_) continue;
    SourceRows& out = routed.outgoing[static_cast<std::size_t>(r)];
    const auto entries = routed.send.to(r);
    out.entries.assign(entries.begin(), entries.end());
    index_rows(config_.experts, routed.shape, r, routed.send.num_tokens, out);
  }
}

// Starts what needs to know nothing of the owners.
template <Fabric F>
int EngineImpl<F>::push_windows(Op& op) {
  const Routed& routed = *op.handle->routed;
  std::uint64_t bytes = 0;
  for (int r = 0; r < config_.size; ++r) {
    if (r == rank_) continue;
    const std::uint32_t rows = routed.outgoing[static_cast<std::size_t>(r)].num_rows();
    if (rows == 0) continue;
    op.unplaced.insert(r);
    bytes += rows * op.stride;
  }
  if (!to_windows(routed)) {
    layout_bases(op);
    return 0;
  }
  if (slices(routed)) {
    op.targets |= op.unplaced;
    add_slices(op);
  } else {
    op.unplaced.for_each([&](int owner) { add_push_tiles(op, owner); });
  }
  op.unplaced.clear();
  const bool is_left_to_step = decodes(routed) && is_by_expert(routed.shape.layout);
  return bytes <= start_bytes() && !is_left_to_step ? run_send_tiles(op) : 0;
}

// Where the groups of each owner begin in op.bases.
template <Fabric F>
void EngineImpl<F>::layout_bases(Op& op) {
  const Routed& routed = *op.handle->routed;
  std::uint32_t first = 0;
  for (int q = 0; q < config_.size; ++q) {
    op.first_base[static_cast<std::size_t>(q)] = first;
    if (!routed.send.owners.contains(q)) continue;
    first += static_cast<std::uint32_t>(routed.shape.groups(config_.experts, q));
  }
  op.bases.resize(first);
}

// Expert layouts: tiles for the owners whose bases have become known. Ends the sending.
template <Fabric F>
int EngineImpl<F>::find_bases(Op& op) {
  bool changed = op.unplaced.meets(op.absent);
  op.unplaced -= op.absent;
  if (!sums_bases() || op.waiting.empty()) {  // else the counts of some source are not here
    op.unplaced.for_each([&](int owner) {
      if (!failed_.ok()) return;
      const Fate fate = sums_bases() ? sum_bases_at(op, owner) : read_bases_at(op, owner);
      if (fate == Fate::waiting) return;
      op.unplaced.erase(owner);
      changed = true;
      if (fate == Fate::lost) report_loss(op, owner);
      if (fate != Fate::stored) return;  // it wants no rows any more
      if (slices(*op.handle->routed)) {
        op.targets.insert(owner);
      } else {
        add_push_tiles(op, owner);
      }
    });
    // Slices go from owner to owner, so all bases must be known.
    if (changed && op.unplaced.empty() && slices(*op.handle->routed)) add_slices(op);
  }
  if (op.unplaced.empty() && op.send.idle()) op.sent = tell_rows(op);
  return changed || op.sent ? 1 : 0;
}

// The bases of my rows on `owner`, from the counts of all sources.
template <Fabric F>
auto EngineImpl<F>::sum_bases_at(Op& op, int owner) -> Fate {
  const OpLine& theirs = op.theirs[static_cast<std::size_t>(owner)];
  sum_bases(config_.experts, op.handle->routed->counts,
            {.alignment = theirs.alignment, .capacity = theirs.capacity},
            {.self = rank_, .owner = owner, .absent = op.absent},
            op.bases.data() + op.first_base[static_cast<std::size_t>(owner)]);
  return bases_fit(op, owner) ? Fate::stored : Fate::waiting;
}

// The same from its base table, which follows its op line; that tells its capacity.
template <Fabric F>
auto EngineImpl<F>::read_bases_at(Op& op, int owner) -> Fate {
  if (op.waiting.contains(owner)) return Fate::waiting;
  const Fate fate = fate_of(op, owner, layout(owner).base(op.handle->slot));
  return fate == Fate::stored && !read_bases(op, owner) ? Fate::waiting : fate;
}

template <Fabric F>
void EngineImpl<F>::add_push_tiles(Op& op, int owner) {
  const std::uint32_t rows =
      op.handle->routed->outgoing[static_cast<std::size_t>(owner)].num_rows();
  // publishes: nothing; the tiles below do.
  op.left[static_cast<std::size_t>(owner)].store_release(rows);
  op.send.add(static_cast<std::uint32_t>(owner), rows, tiles_of(rows * op.stride, kTilesPerPeer),
              false, batch_of(*op.handle->routed, rows));
}

template <Fabric F>
int EngineImpl<F>::push_rows(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  const Routed& routed = *h.routed;
  if (tile.peer == kAllOwners) return push_slice(op, tile);
  if (decodes(routed)) return push_encoded(op, tile);
  const auto owner = static_cast<int>(tile.peer);
  const SourceRows& out = routed.outgoing[tile.peer];
  const std::uint64_t stride = op.stride;
  const std::size_t bytes = op.row_bytes;
  const bool windows = to_windows(routed);
  const std::uint64_t window = window_rows(routed, owner) * static_cast<std::uint64_t>(rank_);
  const std::uint64_t limit = windows ? 0 : op.theirs[tile.peer].capacity;
  const std::uint32_t* bases = windows ? nullptr : op.bases.data() + op.first_base[tile.peer];
  const std::uint32_t begin = tile.next;
  std::size_t group = 0;
  std::uint64_t copied = 0;
  for (; tile.next < tile.end; ++tile.next) {
    std::uint64_t to = window + tile.next;
    if (!windows) {
      while (tile.next >= out.group_begin[group + 1]) ++group;
      to = std::uint64_t{bases[group]} + tile.next - out.group_begin[group];
      if (limit != 0 && to >= (group + 1) * limit) continue;  // beyond the expert's capacity
    }
    const Range range = layout(owner).rows(h.slot, stride, to, 1);
    copy_row(h.store, fabric_.claim_at(owner, range), h.x.row(out.row_token[tile.next]), bytes);
    fabric_.commit_at(owner, range, h.store);
    copied += bytes;
  }
  op.copied.add_relaxed(copied);
  fabric_.order(Ordering::before_flag);  // orders: this lane's streamed rows before the tile's end
  const std::uint32_t done = tile.end - begin;
  end_push_tile(op, owner, done);
  return static_cast<int>(done);
}

// After the last row for an owner its word is stored; or tell_rows() does it.
template <Fabric F>
void EngineImpl<F>::end_push_tile(Op& op, int owner, std::uint32_t rows) {
  // publishes: this lane's rows, to the lane that puts the last one.
  if (op.left[static_cast<std::size_t>(owner)].subtract_acq_rel(rows) != 0) return;
  if (is_fenced(*op.handle->routed) || is_bulk(*op.handle->routed)) return;
  // publishes: all my rows of this epoch, to look_for_rows() of their owner; without the order it
  // would show rows of an earlier epoch.
  fabric_.signal(owner, own().sent(op.handle->slot, owner), op.line.epoch);
}

// A word of a dispatch that rank q may never store: q can be lost, and q can release its handle.
template <Fabric F>
auto EngineImpl<F>::fate_of(Op& op, int q, std::uint64_t word_offset) -> Fate {
  // acquires: what q stored before the word: its base table, or rows in my inbox.
  std::uint64_t seen = fabric_.load_flag(q, word_offset);
  if (seen < op.line.epoch) {
    const bool lost = lost_.contains(q);
    // acquires: the word, if q stored it before it released; and then its rows in its own slot.
    const bool released = fabric_.load_flag(q, layout(q).out(op.handle->slot)) > 2 * op.line.epoch;
    if (!lost && !released) return Fate::waiting;
    // acquires: as above; q may have stored it between our look and its end.
    seen = fabric_.load_flag(q, word_offset);
    if (seen < op.line.epoch) return released ? Fate::released : Fate::lost;
  }
  if (seen == op.line.epoch) return Fate::stored;
  Status status = status_of(op, Code::corrupt);
  status.peer = static_cast<std::int16_t>(q);
  status.what = "a word of";
  status.expected = op.line.epoch;
  status.seen = seen;
  fail(status);
  return Fate::waiting;
}

// Which of the sources that push have put all their rows here. One that released before it had
// keeps them in its slot instead.
template <Fabric F>
int EngineImpl<F>::look_for_rows(Op& op) {
  int done = 0;
  op.coming.for_each([&](int q) {
    const Fate fate = fate_of(op, q, layout(q).sent(op.handle->slot, rank_));
    if (fate == Fate::waiting) return;
    op.coming.erase(q);
    ++done;
    if (fate == Fate::released) op.pushers.erase(q);
    if (fate != Fate::lost) return;
    op.unsent.insert(q);
    op.handle->sources.erase(q);
    report_loss(op, q);
  });
  return done;
}

// The end of a push that was released too early: its rows go to where peers can pull them.
template <Fabric F>
void EngineImpl<F>::leave_rows(Op& op) {
  const HandleState& h = *op.handle;
  const std::uint64_t stride = op.stride;
  for (std::uint32_t token = 0; token < op.line.tokens; ++token) {
    if (h.routed->send.crosses[token] == 0) continue;
    const Range range = own().x(h.slot, stride, token, 1);
    const std::byte* from = h.x.row(token);
    std::byte* to = fabric_.claim(range);
    // input() may have handed out the place itself.
    if (to != from) copy_row(h.store, to, from, op.row_bytes);
    fabric_.commit(range, h.store);
  }
  fabric_.order(Ordering::before_flag);  // orders: the streamed rows before `out`
}

// The rows of a source that was lost before it had sent them: they keep their place.
template <Fabric F>
void EngineImpl<F>::zero_rows(Op& op, int q) {
  const HandleState& h = *op.handle;
  if (relays(*h.routed) && reads_in_place(h.routed->options)) return;  // shown by no_row()
  const SourceRows& source = h.routed->receive.sources[static_cast<std::size_t>(q)];
  const auto stride = static_cast<std::uint64_t>(h.received.stride_bytes);
  const std::uint64_t window = window_rows(*h.routed, rank_) * static_cast<std::uint64_t>(q);
  const bool in_window = copies_at_once(h) || h.routed->options.path == Path::read;
  auto* rows = const_cast<std::byte*>(h.received.base);
  std::size_t group = 0;
  for (std::uint32_t i = 0; i < source.num_rows(); ++i) {
    const std::uint64_t to = in_window ? window + i : row_index(h, q, i, group);
    if (op.line.capacity != 0 && to >= (group + 1) * std::uint64_t{op.line.capacity}) continue;
    if (fabric_.facts().moves_rows) std::memset(rows + to * stride, 0, op.row_bytes);
  }
}

}  // namespace ubep
