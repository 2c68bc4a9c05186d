// What each lane looks after first, and what it is told to have spent its time on.
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

#ifdef UBEP_NO_TRACE
inline constexpr bool kTraces = false;
#else
inline constexpr bool kTraces = true;
#endif

// Looks at the peers in a row that brought nothing, after which who counts helps with rows.
inline constexpr int kPatience = 16;

// Who counts looks at the peers first, and leaves the rows to others until all are heard; the
// others look at the peers when they find no rows.
template <Fabric F>
int EngineImpl<F>::step(int lane, int lanes) {
  (void)lanes;
  charge_wait(lane);
  const int done = work_on(lane);
  if (done != 0) fabric_.post();
  if (done == 0) charge_wait(lane);
  return done;
}

template <Fabric F>
int EngineImpl<F>::work_on(int lane) {
  const bool first = counts(lane);
  int done = first ? hear(lane) + control(lane) : 0;
  if (done != 0 && lanes_ > 1) return done;  // what there is to do now is everybody's
  if (!first || !counts_only()) done += run_tiles(lane);
  if (!first && done == 0) done = hear(lane) + control(lane);
  return done;
}

// Those of its own role first.
template <Fabric F>
int EngineImpl<F>::run_tiles(int lane) {
  int done = 0;
  const auto receive = [&](Op& op) {
    if (op.receive.idle()) return;
    const int rows = run_receive_tiles(op, lane);
    if (rows != 0) charge(lane, Activity::receive);
    done += rows;
  };
  const bool receives_first = receives(lane);
  for (const auto& op : ops_) {
    if (receives_first) receive(*op);
    if (!op->send.idle()) {
      const int rows = run_send_tiles(*op);
      if (rows != 0) charge(lane, Activity::send);
      done += rows;
    }
    if (config_.relay && !op->relay.idle())
      done += op->relay.run([&](Tile& t) { return sum_relayed(*op, t); });
    if (!receives_first) receive(*op);
  }
  return done;
}

// By what this rank sends: others are taken to send as much here.
template <Fabric F>
void EngineImpl<F>::split_roles(const Op& op) {
  if (lanes_ == 1) return;
  if (wanted_roles_.count + wanted_roles_.send + wanted_roles_.receive != 0) {
    roles_ = wanted_roles_;
    return;
  }
  const HandleState& h = *op.handle;
  const auto rows = static_cast<std::int64_t>(h.routed->send.refs.size());
  const bool dispatching = op.line.kind == OpKind::dispatch;
  const bool copies = !dispatching || (h.routed->options.path != Path::read &&
                                       (!pushes(*h.routed) || h.routed->options.path == Path::bsp));
  roles_ = split_lanes(lanes_,
                       {.peers = config_.size - 1,
                        .sent = rows,
                        .received = copies ? rows : 0,
                        .row_bytes = op.row_bytes},
                       fabric_.facts().lane);
}

// Every so many peers are one lane's share.
template <Fabric F>
void EngineImpl<F>::deal_peers(TileBoard& board, int shares) const {
  for (int share = 0; share < shares; ++share) {
    int peers = 0;
    for (int q = share; q < config_.size; q += shares) peers += q != rank_ ? 1 : 0;
    board.add(static_cast<std::uint32_t>(share), static_cast<std::uint32_t>(peers), 1);
  }
}

// Several lanes that count hear the peers in shares.
template <Fabric F>
void EngineImpl<F>::add_shares(Op& op) {
  const int shares = is_bulk(*op.handle->routed) ? lanes_ : roles_.count;
  if (lanes_ == 1 || shares < 2) return;
  op.heard.store_release(op.absent);  // publishes: nothing, the set is empty; the tiles below do
  op.doubts.store_release(0);         // publishes: nothing; likewise
  op.shares = shares;                 // before the tiles: lanes may take them at once
  deal_peers(op.count, shares);
}

// Any lane.
template <Fabric F>
int EngineImpl<F>::hear(int lane) {
  if (lanes_ == 1) return 0;
  int done = 0;
  for (const auto& op : ops_) {
    done += op->tell.run([&](Tile& share) { return tell_share(*op, share); });
    done += op->count.run([&](Tile& share) { return hear_share(*op, share); });
  }
  if (done != 0) charge(lane, Activity::count);
  return done;
}

template <Fabric F>
int EngineImpl<F>::hear_share(Op& op, Tile& share) {
  int done = 0;
  for (int q = static_cast<int>(share.peer); q < config_.size; q += op.shares) {
    // acquires: nothing; an earlier lane of this share put it in.
    if (q == rank_ || op.heard.load_acquire(q)) continue;
    if (!advance_source(op, q, true) || !has_sent(op, q)) continue;
    // publishes: what q said, to is_heard() in the control part.
    op.heard.insert_release(q);
    ++share.next;
    ++done;
  }
  return done;
}

// In bsp rows are counted once they are there.
template <Fabric F>
bool EngineImpl<F>::has_sent(Op& op, int q) {
  if (!is_bulk(*op.handle->routed)) return true;
  const auto i = static_cast<std::size_t>(q);
  if (op.handle->routed->receive.sources[i].entries.empty()) return true;
  // acquires: rows of q in my inbox.
  const std::uint64_t seen = fabric_.load_flag(q, layout(q).sent(op.handle->slot, rank_));
  return seen > op.line.epoch ? doubt(op) : seen == op.line.epoch;
}

// What only the control part may judge: a peer that is lost, or says what it should not. It then
// hears all that are left, once no lane is in a share.
template <Fabric F>
void EngineImpl<F>::hear_alone(Op& op) {
  // acquires: nothing; the control part looks for itself.
  op.recalled = op.recalled || op.doubts.load_acquire() != 0 || op.waiting.meets(lost_);
  if (!op.recalled || op.serial) return;
  op.count.drop();
  op.serial = op.count.idle();
}

template <Fabric F>
bool EngineImpl<F>::is_heard(Op& op, int q) {
  if (op.shares == 1 || q == rank_) return advance_source(op, q, false);
  // acquires: what q said; hear_share() read it on another lane.
  if (op.heard.load_acquire(q)) return true;
  return op.serial && advance_source(op, q, false);
}

template <Fabric F>
bool EngineImpl<F>::doubt(Op& op) {
  op.doubts.store_release(1);  // publishes: nothing; the control part looks for itself
  return false;
}

// Between the phases of bsp: who is last in one lets all lanes into the next.
template <Fabric F>
void EngineImpl<F>::barrier() {
  if (lanes_ == 1) return;
  charge(control_lane_, Activity::count);
  fabric_.work({Work::Kind::barrier, 1});
  charge(control_lane_, Activity::barrier);
}

// Control part, after a look at the peers: what lanes without work wait for, and whether those that
// count should do nothing else.
template <Fabric F>
void EngineImpl<F>::note_awaited(int done) {
  if (lanes_ == 1 && tracer_ == nullptr) return;
  fruitless_ = done != 0 ? 0 : fruitless_ + 1;
  auto awaited = Activity::idle;
  auto held = Activity::idle;  // while other lanes have the last tiles
  bool counting = false;
  if (!order_.empty()) {
    const Op& op = *order_.front();
    const bool dispatching = op.line.kind == OpKind::dispatch;
    const bool push = pushes(*op.handle->routed);
    const bool needs_bases = dispatching && push && (!op.waiting.empty() || !op.unplaced.empty());
    awaited = needs_bases ? Activity::wait_base : Activity::wait_flag;
    if (op.handle->routed->options.path == Path::bsp) held = Activity::barrier;
    counting =
        dispatching && held != Activity::barrier && !op.waiting.empty() && fruitless_ < kPatience;
  }
  // publishes: nothing else; lanes may see it late.
  awaited_.store_release(static_cast<std::uint64_t>(awaited) |
                         static_cast<std::uint64_t>(held) << 8 |
                         static_cast<std::uint64_t>(counting) << 16);
}

template <Fabric F>
bool EngineImpl<F>::counts_only() const {
  // acquires: nothing else.
  return lanes_ > 1 && (awaited_.load_acquire() >> 16) != 0;
}

template <Fabric F>
void EngineImpl<F>::charge(int lane, Activity activity) const {
  if constexpr (kTraces) {
    if (tracer_ != nullptr) tracer_->charge(lane, activity);
  }
}

template <Fabric F>
void EngineImpl<F>::charge_wait(int lane) const {
  if constexpr (kTraces) {
    if (tracer_ == nullptr) return;
    bool held = false;
    bool blocked = false;
    for (const auto& op : ops_) {
      for (const TileBoard* board : {&op->send, &op->receive}) {
        held = held || !board->idle();
        blocked = blocked || board->has_free();
      }
    }
    const std::uint64_t word = awaited_.load_acquire();  // acquires: nothing else.
    const auto kind = static_cast<Activity>((held && !blocked ? word >> 8 : word) & 0xff);
    charge(lane, kind);
  }
}

}  // namespace ubep
