// How operations end: finished, released, or undone because the communicator failed or is closed.
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

// Ends an operation undone, once no lane holds a tile of it.
template <Fabric F>
int EngineImpl<F>::retire(Op& op, const Status& status) {
  const std::array boards = {&op.tell, &op.count, &op.send, &op.receive, &op.relay};
  for (TileBoard* board : boards) board->drop();
  if (!std::all_of(boards.begin(), boards.end(), [](TileBoard* b) { return b->idle(); })) return 0;
  abandon_fetches(op);
  op.status = status;
  std::fill(op.handle->valid.begin(), op.handle->valid.end(), std::uint8_t{0});
  finish(op);
  return 1;
}

template <Fabric F>
int EngineImpl<F>::retire_all(const Status& status) {
  int done = 0;
  for (std::size_t i = 0; i < order_.size();) {
    const int retired = retire(*order_[i], status);
    if (retired == 0) ++i;
    done += retired;
  }
  tell_failure();
  return done;
}

// Calls off what was being fetched for an operation: it would be taken for a later epoch's.
template <Fabric F>
void EngineImpl<F>::abandon_fetches(const Op& op) {
  if (fabric_.facts().mapped) return;
  for (int q = 0; q < config_.size; ++q) {
    if (q != rank_) abandon_fetches(op, q);
  }
}

template <Fabric F>
void EngineImpl<F>::abandon_fetches(const Op& op, int q) {
  if (maps(q)) return;
  const SegmentLayout& l = layout(q);
  fabric_.abandon(q, {l.op(op.line.seq), sizeof(OpLine)});
  for (const Range& range : l.slot_areas(op.handle->slot)) fabric_.abandon(q, range);
}

template <Fabric F>
void EngineImpl<F>::finish(Op& op) {
  HandleState& h = *op.handle;
  h.status = op.status;
  // acquires: nothing; the boards' idle() has the lanes' additions.
  const std::uint64_t copied = op.copied.load_acquire();
  (op.line.kind == OpKind::dispatch ? h.stats.dispatch_copied_bytes
                                    : h.stats.combine_copied_bytes) = copied;
  std::erase(order_, &op);
  op.line.kind = OpKind::none;
  op.handle = nullptr;
  // publishes: the handle's status, views and results, to poll() on any lane.
  h.state.store_release(HandleState::complete);
}

// mismatch and corrupt end the communicator: whatever is pending or comes later gets this status.
template <Fabric F>
void EngineImpl<F>::fail(const Status& status) {
  if (!failed_.ok()) return;
  failed_ = status;
}

// Peers take a failed rank for dead and use its slots again: no lane may be storing rows into their
// inboxes any more.
template <Fabric F>
void EngineImpl<F>::tell_failure() {
  if (failed_.ok() || told_failure_ || !order_.empty()) return;
  told_failure_ = true;
  fabric_.set_state(PeerState::failed);
}

template <Fabric F>
void EngineImpl<F>::release(HandleState& handle) {
  if (!handle.leased || closed_) return;
  Op* op = find(handle);
  const std::uint64_t out_word = 2 * handle.epoch;
  // acquires: nothing; lanes have left.
  const bool outputs_published =
      handle.kind == OpKind::combine && (op == nullptr || op->unpublished.load_acquire() == 0);
  if (!failed_.ok()) {  // peers treat this rank as dead: it says nothing more
    if (op != nullptr) (void)retire(*op, failed_);
    tell_failure();
    end_lease(handle);
    return;
  }
  if (op != nullptr) {
    op->count.drop();
    op->receive.drop();
    op->relay.drop();
    abandon_fetches(*op);
    // Own rows need nobody, their source may be gone afterwards, and peers still count on them.
    (void)run_send_tiles(*op);
    if (op->encoding) {
      end_encoding(*op);
      (void)run_send_tiles(*op);
    }
    if (handle.kind == OpKind::dispatch) {
      tell_rows_unfenced(*op);
      slot_of(handle).dirty = true;
    }
    if (!op->unplaced.empty() && handle.kind == OpKind::dispatch) leave_rows(*op);
    finish_telling(*op);
    (void)(handle.kind == OpKind::combine ? announce_outputs(*op) : announce_rows(*op));
    if (handle.kind == OpKind::combine) slot_of(handle).back_dirty = true;
    if (relays(*handle.routed)) refuse_sources(*op);
    finish(*op);
    handle.kind = OpKind::none;  // nothing to poll or wait for any more
  }
  if (!outputs_published) {
    slot_of(handle).back_dirty = true;
    // publishes: that no outputs of this epoch will come; a peer's combine fails instead of
    // waiting.
    fabric_.store_flag(own().out(handle.slot), out_word + 1);
  }
  // publishes: all my reads of this epoch are over, to next_slot() of every peer; without it they
  // would overwrite rows that are still being read, or wait for ever.
  fabric_.store_flag(own().done(handle.slot), handle.epoch);
  fabric_.post();
  end_lease(handle);
}

template <Fabric F>
bool EngineImpl<F>::is_dispensable() const {
  if (!failed_.ok()) return true;
  for (std::uint64_t e = epoch_; e > first_ && e + slots_.size() > epoch_; --e) {
    const auto slot = static_cast<int>(e % slots_.size());
    for (int p = 0; p < config_.size; ++p) {
      if (p == rank_ || lost_.contains(p)) continue;
      // acquires: nothing; that p reads no more of epoch e.
      if (fabric_.load_flag(p, layout(p).done(slot)) < e) return false;
    }
  }
  return true;
}

template <Fabric F>
void EngineImpl<F>::close() {
  if (closed_) return;
  closed_ = true;
  while (!order_.empty()) {
    Op& op = *order_.front();
    (void)retire(op, not_ready(op.line.kind, "the communicator was closed"));
  }
  tell_failure();
  if (failed_.ok()) fabric_.set_state(PeerState::left);
}

}  // namespace ubep
