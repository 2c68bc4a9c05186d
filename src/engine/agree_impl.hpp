// What ranks tell each other of an operation: op lines, announcements, losses, and who is waited
// for.
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

// Takes the next sequence number.
template <Fabric F>
OpLine EngineImpl<F>::next_line(const HandleState& h, OpKind kind, const ConstRows& rows) {
  OpLine line;
  line.seq = ++seq_;
  line.epoch = h.epoch;
  line.origin = h.routed->origin;
  line.hidden = static_cast<std::uint32_t>(rows.hidden);
  line.tokens = h.routed->send.num_tokens;
  line.kind = kind;
  line.round = h.round.number;
  line.more = h.round.more ? 1 : 0;
  line.dtype = rows.dtype;
  line.layout = h.routed->options.layout;
  line.reduction = h.routed->options.reduction;
  line.topk = static_cast<std::uint8_t>(h.routed->shape.topk);
  const DispatchOptions& options = h.routed->options;
  line.quant = options.quant;
  if (!h.encoder.is_plain()) {
    line.payload_bytes = static_cast<std::uint16_t>(h.encoder.payload_bytes());
  }
  line.topk1 = options.topk1 ? 1 : 0;
  line.path = options.path;
  line.relay_shift = h.routed->relay_shift;
  line.contiguous = options.contiguous ? 1 : 0;
  line.alignment = static_cast<std::uint16_t>(options.expert_alignment);
  line.capacity = static_cast<std::uint32_t>(options.expert_capacity);
  return line;
}

// All peers have been told, or read it where it is.
template <Fabric F>
void EngineImpl<F>::publish(Op& op) {
  if (op.tell_shares == 0) {
    write_op_line(op);
    for (int r = 0; r < config_.size && !fabric_.facts().mapped; ++r) tell_peer(op, r);
  }
  // publishes: the rest of the op line, to agree_on_op() of every peer; without the order a peer
  // would compare with the line of 4N operations ago.
  fabric_.store_flag(own().op(op.line.seq), op.line.seq);
  op.published = true;
}

template <Fabric F>
void EngineImpl<F>::write_op_line(const Op& op) {
  const Range range{own().op(op.line.seq), sizeof(OpLine)};
  std::byte* place = fabric_.claim(range);
  constexpr std::size_t kSeq = sizeof(op.line.seq);
  std::memcpy(place + kSeq, reinterpret_cast<const std::byte*>(&op.line) + kSeq,
              sizeof(OpLine) - kSeq);
  fabric_.commit(range, Store::near);
}

template <Fabric F>
void EngineImpl<F>::begin_telling(Op& op) {
  write_op_line(op);
  // Before the tiles: lanes may take them at once.
  op.tell_shares = is_bulk(*op.handle->routed) ? lanes_ : std::max(roles_.count, 1);
  deal_peers(op.tell, op.tell_shares);
}

// Any lane.
template <Fabric F>
int EngineImpl<F>::tell_share(Op& op, Tile& share) {
  int done = 0;
  for (int r = static_cast<int>(share.peer); r < config_.size; r += op.tell_shares) {
    if (r == rank_) continue;
    tell_peer(op, r);
    ++share.next;
    ++done;
  }
  return done;
}

// What rank r will read of an operation, ahead of its words; in bsp also that its rows are there.
template <Fabric F>
void EngineImpl<F>::tell_peer(Op& op, int r) {
  if (r == rank_) return;
  const Routed& routed = *op.handle->routed;
  const auto rank = static_cast<std::size_t>(r);
  const int slot = op.handle->slot;
  const bool dispatching = op.line.kind == OpKind::dispatch;
  std::array<Range, 4> ranges = {Range{own().op(op.line.seq), sizeof(OpLine)}};
  std::size_t count = 1;
  if (dispatching && !op.cached) {
    const SendPlan& plan = routed.send;
    const auto [first, end] = told_ranks(op, r);
    const std::uint32_t begin = plan.off[static_cast<std::size_t>(first)];
    ranges[count++] = {own().offsets(slot).offset + static_cast<std::uint64_t>(first) * 4,
                       (static_cast<std::uint64_t>(end - first) + 1) * 4};
    ranges[count++] = own().entries(slot, begin, plan.off[static_cast<std::size_t>(end)] - begin);
    if (config_.push && is_by_expert(routed.shape.layout)) {
      ranges[count++] = own().counts(slot, plan.group_rows.size());
    }
  }
  if (!maps(r)) fabric_.replicate(r, std::span(ranges.data(), count));
  if (op.tell_shares == 0 || !dispatching || !is_bulk(routed)) return;
  if (routed.outgoing[rank].num_rows() == 0) return;
  // publishes: all my rows of this epoch, to has_sent() and look_for_rows() of their owner.
  fabric_.signal(r, own().sent(slot, r), op.line.epoch);
}

// An operation that is released tells everything at once.
template <Fabric F>
void EngineImpl<F>::finish_telling(Op& op) {
  (void)op.tell.run([&](Tile& share) { return tell_share(op, share); });
  if (!op.published) publish(op);
}

// Waits (across calls) for op line `seq` of rank q and compares it. True once q agrees.
template <Fabric F>
bool EngineImpl<F>::agree_on_op(Op& op, int q, bool quietly) {
  const std::uint64_t offset = layout(q).op(op.line.seq);
  if (!announced(op, q, {offset, op.line.seq}, quietly)) return false;
  const std::byte* line = fabric_.acquire(q, {offset, sizeof(OpLine)});
  if (line == nullptr) return false;
  OpLine& theirs = op.theirs[static_cast<std::size_t>(q)];
  std::memcpy(&theirs, line, sizeof(theirs));
  fabric_.release(q, {offset, sizeof(OpLine)});
  const auto most = static_cast<std::uint32_t>(config_.max_tokens);
  if (theirs.tokens <= most && same_but_tokens(op.line, theirs)) return true;
  if (quietly && find_corruption(theirs, config_).field == nullptr &&
      compare(op.line, theirs).field == nullptr) {
    return true;
  }
  if (quietly) return doubt(op);

  Status status = status_of(op, Code::mismatch);
  status.peer = static_cast<std::int16_t>(q);
  status.word = Word::op;
  OpDifference found = find_corruption(theirs, config_);
  if (found.field != nullptr) {
    status.code = Code::corrupt;
  } else {
    found = compare(op.line, theirs);
  }
  if (found.field == nullptr) return true;
  status.what = found.field;
  status.expected = found.mine;
  status.seen = found.theirs;
  fail(status);
  return false;
}

// Whether a word of rank q has reached its value. When q is lost and it has not, q is given up: the
// look comes after the verdict, because both belong to the control part. `quietly`: on a lane that
// is not in control and judges nothing.
template <Fabric F>
bool EngineImpl<F>::announced(Op& op, int q, Awaited word, bool quietly) {
  // acquires: what q stored before the word (op line, record and rows, or outputs and bases).
  const std::uint64_t seen = fabric_.load_flag(q, word.offset);
  if (quietly && seen > word.value) return doubt(op);
  if (!quietly && seen < word.value && lost_.contains(q)) give_up_on(op, q);
  if (seen <= word.value) return seen == word.value;
  Status status = status_of(op, Code::corrupt);
  const bool released = op.line.kind == OpKind::combine && word.value == 2 * op.line.epoch &&
                        word.offset == layout(q).out(op.handle->slot) && seen == word.value + 1;
  if (released) status.code = Code::mismatch;
  status.peer = static_cast<std::int16_t>(q);
  status.word = released ? Word::out : Word::none;
  status.what =
      released ? "out (2 x epoch, + 1 = released before all outputs were published)" : "a word of";
  status.expected = word.value;
  status.seen = seen;
  fail(status);
  return false;
}

template <Fabric F>
void EngineImpl<F>::give_up_on(Op& op, int q) {
  op.waiting.erase(q);
  op.absent.insert(q);
  abandon_fetches(op, q);
  if (op.line.kind == OpKind::dispatch && is_relayed(*op.handle->routed, q)) refuse_source(op, q);
  report_loss(op, q);
}

// Once for each rank; how: of one that is not known to be lost.
template <Fabric F>
void EngineImpl<F>::report_loss(Op& op, int q, const char* how) {
  if (reported_.contains(q)) return;
  reported_.insert(q);
  if (op.status.ok()) {
    op.status = status_of(op, Code::peer_lost);
    op.status.peer = static_cast<std::int16_t>(q);
    const char* known = how_lost_[static_cast<std::size_t>(q)];
    op.status.what = known != nullptr ? known : how;
  }
  op.status.missing |= low_bit(q);
}

template <Fabric F>
void EngineImpl<F>::look_for_losses() {
  // claims: the control part, which owns `lost_`; another lane in it will look next time.
  if (!control_.try_claim(1, 0)) return;
  for (int p = 0; p < config_.size; ++p) {
    if (p == rank_ || lost_.contains(p)) continue;
    const PeerState state = fabric_.peer_state(p);
    if (state == PeerState::live || state == PeerState::joining) continue;
    lost_.insert(p);
    how_lost_[static_cast<std::size_t>(p)] = state == PeerState::left     ? "left"
                                             : state == PeerState::failed ? "failed"
                                                                          : "dead";
  }
  control_.store_release(1);  // publishes: `lost_`, to the next lane in control
}

template <Fabric F>
Status EngineImpl<F>::waits_for(const HandleState* handle) const {
  // claims: the control part, for the list of operations. Lanes leave it after a short while, but
  // may take it again at once.
  int tries = 0;
  while (!control_.try_claim(1, 0)) {
    if (++tries == kClaimTries) return not_ready(OpKind::none, "another lane is at work");
    if (tries % kTriesPerYield == 0) std::this_thread::yield();  // it may have lost its CPU
    cpu_relax();
  }
  if (handle == nullptr && !order_.empty()) handle = order_.front()->handle;
  Status status = handle == nullptr ? not_ready(OpKind::none, "no operation is pending")
                                    : describe_wait(*handle);
  control_.store_release(1);  // publishes: nothing; gives control back
  return status;
}

template <Fabric F>
Status EngineImpl<F>::describe_wait(const HandleState& handle) const {
  const Op* op = find(handle);
  if (op == nullptr) return not_ready(handle.kind, "the operation is not pending");
  Status status = status_of(*op, Code::not_ready);
  status.missing = op->waiting.low();
  // acquires: nothing; only the value is shown.
  if (const std::uint64_t left = op->unpublished.load_acquire(); left != 0) {
    status.what = "own experts are not all published: publish() them";
    status.expected = static_cast<std::uint64_t>(config_.experts.num_local(rank_));
    status.seen = status.expected - left;
    return status;
  }
  RankSet coming = op->coming;
  const bool outputs = op->line.kind == OpKind::combine;
  const auto end_of = [&](int q) {
    return outputs ? layout(q).out(handle.slot) : layout(q).sent(handle.slot, rank_);
  };
  const std::uint64_t end = (outputs ? 2 : 1) * op->line.epoch;
  op->decoding.for_each([&](int q) {
    // acquires: nothing; whose rows may be missing.
    if (fabric_.load_flag(q, end_of(q)) < end) coming.insert(q);
  });
  if (relays(*handle.routed) && describe_relay(*op, status)) return status;
  if (op->waiting.empty() && !(op->unplaced.empty() && coming.empty())) {
    const bool bases = !op->unplaced.empty();
    const RankSet& missing = bases ? op->unplaced : coming;
    const int q = missing.first();
    status.missing = missing.low();
    status.peer = static_cast<std::int16_t>(q);
    status.word = bases ? Word::base : outputs ? Word::out : Word::sent;
    status.expected = bases ? op->line.epoch : end;
    // acquires: nothing; only the value is shown.
    status.seen = fabric_.load_flag(q, bases ? layout(q).base(handle.slot) : end_of(q));
    describe_rows(*op, q, status);
    return status;
  }
  if (op->waiting.empty()) {
    status.what = "own work is not done: step() it";
    return status;
  }
  const int q = op->waiting.first();
  const bool dispatching = op->line.kind == OpKind::dispatch;
  // acquires: nothing; only what is shown depends on it.
  const bool started = fabric_.load_flag(q, layout(q).op(op->line.seq)) >= op->line.seq;
  status.peer = static_cast<std::int16_t>(q);
  status.word = !started ? Word::op : dispatching ? Word::pub : Word::out;
  status.expected = !started ? op->line.seq : dispatching ? op->line.epoch : 2 * op->line.epoch;
  const std::uint64_t offset = !started      ? layout(q).op(op->line.seq)
                               : dispatching ? layout(q).pub(handle.slot)
                                             : layout(q).out(handle.slot);
  status.seen = fabric_.load_flag(q, offset);  // acquires: nothing; only the value is shown
  for (std::uint64_t i = 0; i < 4 * slots_.size() && !started; ++i) {
    // acquires: nothing; how many operations q has started is only shown.
    status.seen = std::max(status.seen, fabric_.load_flag(q, layout(q).op(i)));
  }
  describe_rows(*op, q, status);
  return status;
}

// A wait for a gateway, or as one for a source. False: it is another one.
template <Fabric F>
bool EngineImpl<F>::describe_relay(const Op& op, Status& status) const {
  const int slot = op.handle->slot;
  const bool dispatching = op.line.kind == OpKind::dispatch;
  if (dispatching && !op.waiting.empty()) return false;
  if (dispatching && !op.coming.empty()) {
    const int q = op.coming.first();
    status.missing = op.coming.low();
    status.peer = static_cast<std::int16_t>(gateway_of(op, q));
    status.word = Word::relayed;
    status.expected = 2 * op.line.epoch;
    // acquires: nothing; only the value is shown.
    status.seen = fabric_.load_flag(status.peer, layout(status.peer).relayed(slot, q));
    return true;
  }
  if (dispatching && !op.relaying.empty()) {
    const int q = op.relaying.first();
    status.missing = op.relaying.low();
    status.peer = static_cast<std::int16_t>(q);
    status.word = Word::sent;
    status.expected = op.line.epoch;
    // acquires: nothing; only the value is shown.
    status.seen = fabric_.load_flag(q, layout(q).sent(slot, rank_));
    return true;
  }
  if (dispatching || op.waiting.empty() || !sums_by_host(*op.handle->routed)) return false;
  const int q = op.waiting.first();
  // acquires: nothing; only what is shown depends on it.
  const bool started = fabric_.load_flag(q, layout(q).op(op.line.seq)) >= op.line.seq;
  if (!started || hosts_.same(q, rank_)) return false;
  status.peer = static_cast<std::int16_t>(q);
  status.word = Word::summed;
  status.expected = 2 * op.line.epoch;
  status.seen = fabric_.load_flag(q, layout(q).summed(slot, rank_));  // acquires: nothing; as above
  return true;
}

// Which rows are awaited from q. What q has said is known unless lanes hear it, in shares, just
// now.
template <Fabric F>
void EngineImpl<F>::describe_rows(const Op& op, int q, Status& status) const {
  const auto i = static_cast<std::size_t>(q);
  const bool is_known = op.shares == 1 || op.serial;
  if (op.line.kind == OpKind::dispatch) {
    if (is_known && op.stage[i] >= Op::kRecord) status.rows = op.span[i][1] - op.span[i][0];
    return;
  }
  const std::span<const Entry> entries = op.handle->routed->send.to(q);
  if (entries.empty()) return;
  const auto tokens =
      std::minmax_element(entries.begin(), entries.end(),
                          [](const Entry& a, const Entry& b) { return a.token < b.token; });
  status.rows = static_cast<std::uint32_t>(entries.size());
  status.first_token = tokens.first->token;
  status.last_token = tokens.second->token;
  if (!is_known || op.stage[i] == Op::kOpLine || op.theirs[i].by_expert == 0) return;
  const auto late = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
    const auto local = static_cast<std::uint64_t>(config_.experts.local[entry.expert]);
    // acquires: nothing; only the expert is shown.
    return fabric_.load_flag(q, layout(q).out_expert(op.handle->slot, local)) < op.line.epoch;
  });
  if (late != entries.end()) status.expert = late->expert;
}

}  // namespace ubep
