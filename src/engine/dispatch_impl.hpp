// Dispatch: own tokens into the slot, peers' records out of theirs (docs/protocol.md).
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

// Whether dispatch epoch_ + 1 may take its slot: no lease of ours, credit from every live peer.
template <Fabric F>
Status EngineImpl<F>::next_slot(bool uses_input, std::uint64_t& epoch) const {
  epoch = epoch_ + 1;
  const auto slot = static_cast<int>(epoch % slots_.size());
  Status status = not_ready(OpKind::dispatch, "");
  status.epoch = epoch;
  if (input_reserved_ && !uses_input) {
    status.code = Code::slot_busy;
    status.what = "input() reserved the next dispatch for its buffer";
    return status;
  }
  if (slots_[static_cast<std::size_t>(slot)].combining) {
    status.what = "the combine of the slot's lease is pending";
    return status;
  }
  if (slots_[static_cast<std::size_t>(slot)].leased) {
    status.code = Code::slot_busy;
    status.what = "the slot is leased: combine or release an earlier dispatch first";
    status.expected = slots_.size();
    return status;
  }
  const bool is_first = epoch - first_ <= slots_.size();
  if (is_first && (!arms_ || made_together_)) return {};
  status.word = is_first ? Word::armed : Word::done;
  status.expected = is_first ? first_ + 1 : epoch - slots_.size();
  for (int p = config_.size - 1; p >= 0; --p) {
    if (p == rank_ || lost_.contains(p)) continue;
    // acquires: the end of p's reads of this slot, or that it is armed; without it rows would
    // change under p.
    const std::uint64_t seen =
        fabric_.load_flag(p, is_first ? layout(p).armed(slot) : layout(p).done(slot));
    if (seen >= status.expected) continue;
    status.missing |= low_bit(p);
    status.peer = static_cast<std::int16_t>(p);
    status.seen = seen;
  }
  return status.peer < 0 ? Status{} : status;
}

template <Fabric F>
Status EngineImpl<F>::input(std::int64_t num_tokens, std::int64_t hidden, DType dtype, Rows& x) {
  if (!failed_.ok()) return failed_;
  tell_windows_armed();
  std::uint64_t epoch = 0;
  const Status status = next_slot(false, epoch);
  if (!status.ok()) return status;
  const auto slot = static_cast<int>(epoch % slots_.size());
  x = Rows{nullptr, num_tokens, hidden, dtype};
  const std::uint64_t stride = stride_of(ConstRows(x));
  x.stride_bytes = static_cast<std::int64_t>(stride);
  if (store_ == Store::near) {
    fabric_.prepare(own().x(slot, stride, 0, static_cast<std::uint64_t>(num_tokens)));
  }
  input_in_slot_ = store_ == Store::near;
  if (input_in_slot_) {
    x.data = fabric_.claim(own().x(slot, stride, 0, static_cast<std::uint64_t>(num_tokens)));
  } else {
    input_area_ = take_area();
    x.data = input_area_->x.data();
  }
  input_reserved_ = true;
  input_data_ = x.data;
  return {};
}

template <Fabric F>
Status EngineImpl<F>::start_dispatch(const Input& in, const RoutingView& routing,
                                     const DispatchOptions& options, HandleState& handle) {
  if (!failed_.ok()) return failed_;
  check_input(in, options.quant);
  if (options.path == Path::read && !fabric_.facts().mapped) {
    throw Error(ErrorCode::invalid_argument, "path is read, expected pull: peers are not mapped");
  }
  tell_windows_armed();
  std::uint64_t epoch = 0;
  const Status status = next_slot(input_reserved_ && in.x.data == input_data_, epoch);
  if (!status.ok()) return status;
  if (handle.routed.use_count() != 1) handle.routed = std::make_shared<Routed>();
  handle.kind = OpKind::none;  // its earlier plan goes now: no longer a handle to repeat
  Routed& routed = *handle.routed;
  routed.options = options;
  routed.shape.layout = options.layout;
  routed.shape.reduction = options.reduction;
  routed.shape.topk1 = options.topk1;
  routed.shape.every_token = options.path == Path::allgather;
  fabric_.work({Work::Kind::plan, routing.topk_idx.size_bytes()});
  routed.shape.topk = routing.topk;
  make_send_plan(routing, config_.experts, routed.shape, rank_, routed.send);
  if (pushes(routed)) plan_outgoing(routed);
  if (relays(routed)) plan_relay(routed);
  map_view(options, static_cast<int>(epoch % slots_.size()));
  routed.origin = epoch;
  begin_dispatch(in, handle, false);
  return {};
}

template <Fabric F>
Status EngineImpl<F>::start_cached_dispatch(const Input& in, const HandleState& cached,
                                            HandleState& handle) {
  if (!failed_.ok()) return failed_;
  check_input(in, cached.routed->options.quant);
  tell_windows_armed();
  std::uint64_t epoch = 0;
  const Status status = next_slot(input_reserved_ && in.x.data == input_data_, epoch);
  if (!status.ok()) return status;
  map_view(cached.routed->options, static_cast<int>(epoch % slots_.size()));
  handle.routed = cached.routed;
  begin_dispatch(in, handle, true);
  return {};
}

// x in the buffer of input() must lie as input() laid it out: peers read it there.
template <Fabric F>
void EngineImpl<F>::check_input(const Input& in, Quant quant) const {
  const ConstRows& x = in.x;
  if (!input_reserved_ || x.data != input_data_ || x.num_rows == 0) return;
  if (quant != Quant::none || !in.payloads.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "x lies in the buffer of input(), expected elsewhere with quant or payloads");
  }
  if (static_cast<std::uint64_t>(x.stride()) == stride_of(x)) return;
  throw Error(ErrorCode::invalid_argument, "x.stride_bytes is " + std::to_string(x.stride()) +
                                               " in the buffer of input(), expected " +
                                               std::to_string(stride_of(x)));
}

// Before the epoch is consumed: mapping can fail.
template <Fabric F>
void EngineImpl<F>::map_view(const DispatchOptions& options, int slot) {
  if constexpr (requires(Range range) { fabric_.map_side_by_side(range); }) {
    const Range area{own().x(slot, 0, 0, 0).offset, own().x_area_bytes()};
    if (!options.mapped_view || area.bytes == 0) return;
    mapped_views_[static_cast<std::size_t>(slot)] = fabric_.map_side_by_side(area);
  }
}

// From here on nothing can be refused: the epoch is consumed.
template <Fabric F>
void EngineImpl<F>::begin_dispatch(const Input& in, HandleState& h, bool cached) {
  const bool in_slot = input_reserved_ && in.x.data == input_data_ && input_in_slot_;
  input_reserved_ = false;
  begin_lease(in, h);

  Op& op = free_op();
  op.handle = &h;
  h.op = &op;
  op.cached = cached;
  op.line = next_line(h, OpKind::dispatch, in.x);
  set_rows(op, h.x);
  op.waiting = RankSet::all(config_.size);
  order_.push_back(&op);
  split_roles(op);
  if (lanes_ > 1) h.stats.roles = roles_;
  bind_rows(op);
  if (!cached) {
    write_record(h);
    h.routed->receive.sources.resize(static_cast<std::size_t>(config_.size));
    h.routed->first_entry.resize(static_cast<std::size_t>(config_.size));
    h.routed->relayed.assign(relays(*h.routed) ? static_cast<std::size_t>(config_.size) : 0, {});
  }
  const bool encodes_first = pushes(*h.routed) || relays(*h.routed);
  if (encodes_first && !h.encoder.is_plain()) begin_encoding(op);
  if (arms_ && h.routed->options.path == Path::push) mark_rows(op);
  const bool bulk = is_bulk(*h.routed);
  if (!bulk) add_shares(op);
  op.published = false;
  const bool in_shares = tells_in_shares(*h.routed);
  if (in_shares && !bulk) begin_telling(op);
  if (!in_shares) publish(op);
  if (pushes(*h.routed)) {
    if (op.published) (void)announce_rows(op);
    if (!op.encoding) (void)push_windows(op);
  } else if (relays(*h.routed)) {
    if (!op.encoding) add_relay_tiles(op);
    (void)announce_rows(op);
  } else {
    add_token_tiles(op, in_slot);
    (void)announce_rows(op);
  }
  fabric_.post();
  note_awaited(1);
}

// The handle's part: its lease, and where its rows lie.
template <Fabric F>
void EngineImpl<F>::begin_lease(const Input& in, HandleState& h) {
  const ConstRows& x = in.x;
  h.epoch = ++epoch_;
  h.slot = static_cast<int>(h.epoch % slots_.size());
  h.hidden = static_cast<int>(x.hidden);
  h.dtype = x.dtype;
  h.store = store_;
  h.x = x;
  h.out = in.out;
  h.in_out = false;
  h.encoder.begin(in, h.routed->options.quant);
  h.leased = true;
  h.kind = OpKind::dispatch;
  h.sources = RankSet(config_.size);
  h.stats = {.path = h.routed->options.path, .store = store_, .reason = h.routed->reason};
  h.state.store_release(HandleState::pending);  // publishes: nothing; this thread starts it
  h.shown.store_release(0);                     // publishes: nothing; likewise
  if (h.routed->options.by_expert) {
    h.experts.clear(static_cast<std::size_t>(config_.experts.num_local(rank_)));
  }
  slot_of(h).leased = true;
  slot_of(h).combining = false;
  slot_of(h).area = input_area_ != nullptr ? input_area_ : take_area();
  input_area_ = nullptr;
  bind_areas(h);
  if (!h.encoder.is_plain()) stage_rows(h);
}

// Where sent rows are made: in the slot itself if peers read them there and it is near.
template <Fabric F>
void EngineImpl<F>::stage_rows(HandleState& h) {
  const std::uint64_t bytes = h.encoder.layout().bytes;
  const std::uint64_t stride = round_up(bytes, kLineBytes);
  const bool in_slot = h.store == Store::near && !pushes(*h.routed) && !relays(*h.routed);
  const auto tokens = static_cast<std::uint64_t>(h.x.num_rows);
  const std::byte* place =
      in_slot ? fabric_.claim(own().x(h.slot, stride, 0, tokens)) : slot_of(h).area->x.data();
  h.x = ConstRows(place, h.x.num_rows, static_cast<std::int64_t>(bytes), DType::u8,
                  static_cast<std::int64_t>(stride));
}

// push, relay: all own rows before any of them is sent, since a token may go to several places.
template <Fabric F>
void EngineImpl<F>::begin_encoding(Op& op) {
  const std::uint64_t bytes = op.line.tokens * op.handle->encoder.source_bytes();
  op.encoding = true;
  op.send.add(0, op.line.tokens, tiles_of(bytes, kTilesForAll));
  if (bytes > start_bytes() && !arms_) return;  // marks are those of sent rows
  (void)run_send_tiles(op);
  op.encoding = false;
}

// No lane has a tile of it any more.
template <Fabric F>
void EngineImpl<F>::end_encoding(Op& op) {
  op.encoding = false;
  relays(*op.handle->routed) ? add_relay_tiles(op) : (void)push_windows(op);
}

template <Fabric F>
int EngineImpl<F>::encode_tokens(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  const std::uint32_t begin = tile.next;
  for (; tile.next < tile.end; ++tile.next) encode_token(h, tile.next);
  return static_cast<int>(tile.end - begin);
}

template <Fabric F>
void EngineImpl<F>::encode_token(const HandleState& h, std::uint32_t token) {
  auto* to = const_cast<std::byte*>(h.x.row(token));
  if (fabric_.facts().moves_rows) h.encoder.encode(token, to);
  fabric_.work({Work::Kind::copy, h.encoder.source_bytes()});
}

// Own tokens into the slot, where peers read them.
template <Fabric F>
void EngineImpl<F>::add_token_tiles(Op& op, bool in_slot) {
  const HandleState& h = *op.handle;
  const std::uint32_t tokens = op.line.tokens;
  if (in_slot) {
    fabric_.commit(own().x(h.slot, op.stride, 0, tokens), Store::near);
    return;
  }
  fabric_.prepare(own().x(h.slot, op.stride, 0, tokens));
  const std::uint64_t bytes = tokens * op.stride;
  op.send.add(0, tokens, tiles_of(bytes, kTilesForAll));
  if (bytes <= start_bytes()) (void)run_send_tiles(op);
}

// Offsets, counts and entries; pub announces them.
template <Fabric F>
void EngineImpl<F>::write_record(const HandleState& h) {
  const SendPlan& plan = h.routed->send;
  const Range head = own().offsets(h.slot);
  std::memcpy(fabric_.claim(head), plan.off.data(), head.bytes);
  fabric_.commit(head, Store::near);
  if (config_.push && is_by_expert(h.routed->shape.layout)) {
    const Range counts = own().counts(h.slot, plan.group_rows.size());
    std::memcpy(fabric_.claim(counts), plan.group_rows.data(), counts.bytes);
    fabric_.commit(counts, Store::near);
  }
  const Range body = own().entries(h.slot, 0, plan.entries.size());
  const auto bytes = std::as_bytes(std::span(plan.entries));
  if (!bytes.empty()) copy_with(h.store, fabric_.claim(body), bytes.data(), bytes.size());
  fabric_.commit(body, h.store);
  fabric_.order(Ordering::before_flag);  // orders: streamed entries before pub
}

// Where received rows go and where outputs are written, by the store policy.
template <Fabric F>
void EngineImpl<F>::bind_areas(HandleState& h) {
  const DispatchOptions& options = h.routed->options;
  Slot& slot = slot_of(h);
  std::byte* shared = fabric_.claim(own().y(h.slot, 1, 0, own().y_area_bytes()));
  const bool in_segment =
      h.store == Store::near && options.weighting == Weighting::kernel && !returns(*h.routed);
  h.output.data = in_segment ? shared : slot.area->y.data();
}

template <Fabric F>
int EngineImpl<F>::send_tokens(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  const std::uint64_t stride = op.stride;
  const std::size_t bytes = op.row_bytes;
  const bool all = h.routed->options.mapped_view;
  const std::uint32_t begin = tile.next;
  const bool plain = h.encoder.is_plain();
  std::uint64_t copied = 0;
  for (; tile.next < tile.end; ++tile.next) {
    if (!plain) encode_token(h, tile.next);
    if (!all && h.routed->send.crosses[tile.next] == 0) continue;
    const Range range = own().x(h.slot, stride, tile.next, 1);
    std::byte* to = fabric_.claim(range);
    const std::byte* from = h.x.row(tile.next);
    if (to != from) copy_row(h.store, to, from, bytes);
    fabric_.commit(range, h.store);
    copied += bytes;
  }
  op.copied.add_relaxed(copied);
  fabric_.order(Ordering::before_flag);  // orders: this lane's streamed rows before the tile's end
  return static_cast<int>(tile.end - begin);
}

// Once all own rows are stored, where peers read them. Returns whether it told so now.
template <Fabric F>
int EngineImpl<F>::announce_rows(Op& op) {
  const bool stored = pushes(*op.handle->routed) || (op.send.idle() && !op.encoding);
  if (op.announced || !stored) return 0;
  if (!op.tell.idle()) return 0;
  if (!op.published) publish(op);
  if (relays(*op.handle->routed)) tell_gateways(op);
  // publishes: record and x rows of this epoch, to advance_source() of every peer; without the
  // order a peer would compute with the rows of an earlier epoch.
  fabric_.store_flag(own().pub(op.handle->slot), op.line.epoch);
  op.announced = true;
  op.sent = !pushes(*op.handle->routed) || (op.tell_shares != 0 && is_bulk(*op.handle->routed));
  return 1;
}

// The phases of bsp with several lanes: rows, flags, then what the peers say. True in the last one.
template <Fabric F>
bool EngineImpl<F>::sends_in_bulk(Op& op, int& done) {
  const Routed& routed = *op.handle->routed;
  if (op.tell_shares == 0 && tells_in_shares(routed)) {
    if (!op.send.idle()) return true;
    barrier();
    begin_telling(op);
    ++done;
  }
  done += announce_rows(op);
  if (op.announced && !op.sent) done += find_bases(op);
  if (!op.sent) return true;
  if (op.shares == 1) add_shares(op);
  return false;
}

template <Fabric F>
int EngineImpl<F>::advance_dispatch(Op& op) {
  HandleState& h = *op.handle;
  const bool bulk = is_bulk(*h.routed);
  int done = 0;
  if (op.encoding) {
    if (!op.send.idle()) return 0;
    end_encoding(op);
    ++done;
  }
  if (bulk && lanes_ > 1 && sends_in_bulk(op, done)) return done;
  done += announce_rows(op);
  if (op.shares > 1) hear_alone(op);
  op.waiting.for_each([&](int q) {
    if (!is_heard(op, q)) return;
    op.waiting.erase(q);
    h.sources.insert(q);
    source_arrived(op, q);
    // acquires: nothing more; a share that heard q found its rows, too.
    if (bulk && op.shares > 1 && op.heard.load_acquire(q)) op.coming.erase(q);
    ++done;
  });
  if (failed_.ok() && !op.sent && op.announced) done += find_bases(op);
  if (failed_.ok() && !op.relaying.empty()) done += serve_sources(op);
  if (failed_.ok() && !op.coming.empty()) {
    done += relays(*h.routed) ? look_for_relayed(op) : look_for_rows(op);
  }
  if (failed_.ok() && op.decoding.meets(lost_)) done += look_at_lost_sources(op);
  if (!failed_.ok()) return done;
  // Replacing a repeated plan: no lane may still be at work by the old one.
  const bool may_replace_plan =
      !op.cached || op.absent.empty() || (op.send.idle() && op.receive.idle());
  const bool may_count = !bulk || (op.sent && op.coming.empty());
  if (op.waiting.empty() && !op.placed && may_replace_plan && may_count) {
    if (bulk) barrier();
    place_rows(op);
    if (bulk) barrier();
    op.placed = true;
    ++done;
  }
  add_copies(op);
  if (op.placed && op.sent && op.coming.empty() && op.relaying.empty() && op.receive.idle() &&
      op.count.idle()) {
    if (decodes_) tidy_windows(h);
    if (!op.by_expert) show_received(op);
    report_overflow(op);
    finish(op);
    ++done;
  }
  return done;
}

// True once everything that rank q says about this dispatch is here and checked.
template <Fabric F>
bool EngineImpl<F>::advance_source(Op& op, int q, bool quietly) {
  auto& stage = op.stage[static_cast<std::size_t>(q)];
  if (q == rank_) {
    if (!op.cached) {
      const auto entries = op.handle->routed->send.to(q);
      op.handle->routed->receive.sources[static_cast<std::size_t>(q)].entries.assign(
          entries.begin(), entries.end());
      if (pushes(*op.handle->routed)) {
        op.handle->routed->counts[static_cast<std::size_t>(q)] = op.handle->routed->send.group_rows;
      }
    }
    return true;
  }
  if (stage == Op::kOpLine && agree_on_op(op, q, quietly)) stage = Op::kAnnouncement;
  if (stage == Op::kAnnouncement &&
      announced(op, q, {layout(q).pub(op.handle->slot), op.line.epoch}, quietly)) {
    stage = Op::kRecordHead;
  }
  if (stage == Op::kRecordHead && !read_marks(op, q)) return false;
  if (stage == Op::kRecordHead) {
    if (op.cached) return true;
    if (read_record_head(op, q, quietly)) stage = Op::kRecord;
  }
  if (stage == Op::kRecord && read_record(op, q, quietly)) stage = Op::kCounts;
  return stage == Op::kCounts && read_counts(op, q) && read_relayed(op, q, quietly);
}

// Only a source that sums its bases itself needs the counts of others.
template <Fabric F>
bool EngineImpl<F>::read_counts(Op& op, int q) {
  Routed& routed = *op.handle->routed;
  if (!pushes(routed) || to_windows(routed) || !sums_bases()) return true;
  const Range range = layout(q).counts(op.handle->slot, routed.send.group_rows.size());
  const std::byte* counts = fabric_.acquire(q, range);
  if (counts == nullptr) return false;
  auto& copy = routed.counts[static_cast<std::size_t>(q)];
  copy.resize(routed.send.group_rows.size());
  std::memcpy(copy.data(), counts, range.bytes);
  fabric_.release(q, range);
  return true;
}

template <Fabric F>
bool EngineImpl<F>::read_record_head(Op& op, int q, bool quietly) {
  Range range = layout(q).offsets(op.handle->slot);
  range = {range.offset + static_cast<std::uint64_t>(rank_) * 4, 8};
  const std::byte* head = fabric_.acquire(q, range);
  if (head == nullptr) return false;
  auto& span = op.span[static_cast<std::size_t>(q)];
  std::memcpy(span.data(), head, 8);
  fabric_.release(q, range);
  const std::uint64_t most =
      std::uint64_t{op.theirs[static_cast<std::size_t>(q)].tokens} * op.line.topk;
  if (span[0] <= span[1] && span[1] <= most && most <= layout(q).max_entries()) {
    Routed& routed = *op.handle->routed;
    if (pushes(routed) || returns(routed))
      routed.first_entry[static_cast<std::size_t>(q)] = span[0];
    return true;
  }
  return refuse_record(op, q, {"record offset", most, span[1]}, quietly);
}

template <Fabric F>
bool EngineImpl<F>::refuse_record(Op& op, int q, const OpDifference& found, bool quietly) {
  if (quietly) return doubt(op);
  Status status = status_of(op, Code::corrupt);
  status.peer = static_cast<std::int16_t>(q);
  status.word = Word::record;
  status.what = found.field;
  status.expected = found.mine;
  status.seen = found.theirs;
  fail(status);
  return false;
}

template <Fabric F>
bool EngineImpl<F>::read_record(Op& op, int q, bool quietly) {
  const auto& span = op.span[static_cast<std::size_t>(q)];
  const Range range = layout(q).entries(op.handle->slot, span[0], span[1] - span[0]);
  auto& entries = op.handle->routed->receive.sources[static_cast<std::size_t>(q)].entries;
  const std::byte* body = fabric_.acquire(q, range);
  if (body == nullptr) return false;
  entries.resize(span[1] - span[0]);
  if (!entries.empty()) std::memcpy(entries.data(), body, range.bytes);
  fabric_.release(q, range);
  const OpDifference found =
      find_corruption(entries, {.experts = &config_.experts,
                                .rank = rank_,
                                .tokens = op.theirs[static_cast<std::size_t>(q)].tokens,
                                .topk = op.line.topk,
                                .layout = op.line.layout});
  return found.field == nullptr || refuse_record(op, q, found, quietly);
}

}  // namespace ubep
