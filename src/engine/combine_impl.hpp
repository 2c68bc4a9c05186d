// Combine: own outputs into the slot, own tokens as sums of the owners' rows (docs/protocol.md).
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

// The rows of one token, in the order of the reduction.
struct TokenRows {
  static constexpr std::size_t kMost = kMaxTopk + std::tuple_size_v<decltype(CombineArgs::added)>;
  std::array<const std::byte*, kMost> rows;
  std::array<float, kMost> weights;
  std::array<std::uint8_t, kMost> ends;
  std::size_t count = 0;
  bool complete = true;          // no row was lost
  MissingRow missing;            // one that is still being fetched
  std::byte* scratch = nullptr;  // for rows that must be taken out of their blocks,
  std::uint64_t stride = 0;      //   so far apart
};

template <Fabric F>
Status EngineImpl<F>::start_combine(HandleState& h, const CombineArgs& args) {
  if (!failed_.ok()) return failed_;
  if (args.by_expert && returns(*h.routed)) {
    throw Error(ErrorCode::invalid_argument,
                "by_expert is set, expected only where peers read outputs in place");
  }
  Op& op = free_op();
  op.handle = &h;
  h.op = &op;
  op.args = args;
  const SendPlan& plan = h.routed->send;
  op.line = next_line(h, OpKind::combine, args.out);
  set_rows(op, args.out);
  op.line.unweighted = args.unweighted ? 1 : 0;
  op.line.by_expert = args.by_expert ? 1 : 0;
  if (relays(*h.routed)) note_lacking(op);
  h.kind = OpKind::combine;
  slot_of(h).combining = true;
  h.state.store_release(HandleState::pending);  // publishes: nothing; this thread starts it
  h.valid.assign(plan.num_tokens, 1);
  op.waiting = plan.owners;
  if (sums_by_host(*h.routed)) begin_sums(op);
  layout_bases(op);
  order_.push_back(&op);
  split_roles(op);
  bind_outputs(op, args.y);
  op.published = false;
  tells_in_shares(*h.routed) ? begin_telling(op) : publish(op);
  if (args.by_expert) {
    begin_publishing(op);
    fabric_.post();
    note_awaited(1);
    return {};
  }
  add_output_tiles(op);
  const auto rows = static_cast<std::uint64_t>(h.routed->receive.num_rows);
  if (rows * op.stride <= start_bytes()) (void)run_send_tiles(op);
  if (!is_acknowledged_ || are_acknowledged(op)) (void)announce_outputs(op);
  fabric_.post();
  note_awaited(1);
  return {};
}

// Where the outputs are, and where own rows are read.
template <Fabric F>
void EngineImpl<F>::bind_outputs(Op& op, const ConstRows& y) {
  const HandleState& h = *op.handle;
  op.own_y = h.output;
  if (y.data != nullptr) {
    op.own_y = y;
    op.own_y.num_rows = h.output.num_rows;
  }
}

template <Fabric F>
bool EngineImpl<F>::in_segment(const Op& op) {
  return op.own_y.data == fabric_.claim(own().y(op.handle->slot, 1, 0, 0));
}

template <Fabric F>
void EngineImpl<F>::begin_publishing(Op& op) {
  const int experts = config_.experts.num_local(rank_);
  op.published_experts.clear(static_cast<std::size_t>(experts));
  // publishes: nothing; this thread goes on to publish.
  op.unpublished.store_release(static_cast<std::uint64_t>(experts));
  (void)announce_outputs(op);
}

template <Fabric F>
bool EngineImpl<F>::publish_expert(HandleState& h, int expert) {
  Op& op = *h.op;
  const auto e = static_cast<std::size_t>(expert);
  // claims: the right to publish this expert, of which a second call has none.
  if (!op.published_experts.try_insert(e)) return false;
  const ReceivePlan& plan = h.routed->receive;
  const bool in_place = in_segment(op);
  const std::uint64_t limit = op.line.capacity;
  for (int q = 0; q < config_.size; ++q) {
    const SourceRows& source = plan.sources[static_cast<std::size_t>(q)];
    if (q == rank_ || source.num_rows() == 0) continue;
    const std::uint64_t first = plan.base(q, expert);
    std::uint64_t end = first + source.group_begin[e + 1] - source.group_begin[e];
    if (limit != 0) end = std::min(end, (e + 1) * limit);  // no more have a place
    for (std::uint64_t row = first; row < end; ++row) {
      const Range range = own().y(h.slot, op.stride, row, 1);
      std::byte* to = fabric_.claim(range);
      const std::byte* from = op.own_y.row(static_cast<std::int64_t>(row));
      if (!in_place) copy_row(h.store, to, from, op.row_bytes);
      fabric_.commit(range, in_place ? Store::near : h.store);
      if (!in_place) op.copied.add_relaxed(op.row_bytes);
    }
  }
  fabric_.order(Ordering::before_flag);  // orders: streamed rows before the expert's word
  // publishes: the outputs of this expert, to is_out() of every peer; without the order it would
  // sum those of an earlier epoch.
  fabric_.store_flag(own().out_expert(h.slot, e), op.line.epoch);
  // publishes: this lane's outputs, to the lane that announces them all.
  op.unpublished.subtract_acq_rel(1);
  return true;
}

// Whether an expert's outputs can be read before all of its owner's can.
template <Fabric F>
bool EngineImpl<F>::is_out(const Op& op, const RowRef& ref) const {
  // acquires: the bases of this owner; advance_owner() stored them before.
  if (!op.early_ready.load_acquire(ref.rank)) return false;
  // acquires: the outputs of this expert, which its owner stored before the word.
  return fabric_.load_flag(ref.rank, layout(ref.rank).out_expert(op.handle->slot, ref.group)) ==
         op.line.epoch;
}

// Outputs that do not lie in the segment yet: everything for peers, and own sums with `owner`.
template <Fabric F>
void EngineImpl<F>::add_output_tiles(Op& op) {
  const HandleState& h = *op.handle;
  const std::uint64_t stride = op.stride;
  const bool owner = h.routed->options.weighting == Weighting::owner;
  if (!owner && in_segment(op) && !returns(*h.routed)) {
    const auto rows = static_cast<std::uint64_t>(h.routed->receive.num_rows);
    fabric_.commit(own().y(h.slot, stride, 0, rows), Store::near);
    return;
  }
  if (lanes_ > 1 && returns(*h.routed) && !by_token(*h.routed)) return add_output_slices(op);
  for (int q = 0; q < config_.size; ++q) {
    if (q == rank_ && !owner) continue;
    const std::uint32_t rows = h.routed->receive.sources[static_cast<std::size_t>(q)].num_rows();
    op.send.add(static_cast<std::uint32_t>(q), rows, tiles_of(rows * stride, kTilesPerPeer));
  }
}

// Owner weighting: the weighted sum of one received row's expert outputs.
template <Fabric F>
void EngineImpl<F>::sum_choices(const Op& op, int q, std::uint32_t row, std::byte* out) const {
  const HandleState& h = *op.handle;
  const SourceRows& source = h.routed->receive.sources[static_cast<std::size_t>(q)];
  const auto& pairs = h.routed->receive.pairs[static_cast<std::size_t>(q)];
  std::array<const std::byte*, kMaxTopk> rows;
  std::array<float, kMaxTopk> weights;
  std::size_t count = 0;
  for (std::uint32_t j = source.row_entry[row]; j < source.row_entry[row + 1]; ++j, ++count) {
    rows[count] = op.own_y.row(pairs[j]);
    weights[count] = op.line.unweighted != 0 ? 1.0F : source.entries[j].weight;
  }
  const RowSum sum{.rows = {rows.data(), count},
                   .weights = weights.data(),
                   .hidden = op.line.hidden,
                   .dtype = op.line.dtype};
  if (fabric_.facts().moves_rows) sum_rows_with(q == rank_ ? Store::near : h.store, sum, out);
}

template <Fabric F>
int EngineImpl<F>::send_outputs(Op& op, Tile& tile) {
  if (tile.peer == kAllOwners) return return_slice(op, tile);
  HandleState& h = *op.handle;
  const auto q = static_cast<int>(tile.peer);
  const bool owner = h.routed->options.weighting == Weighting::owner;
  const bool back = q != rank_ && returns(*h.routed);
  const std::uint64_t stride = op.stride;
  const auto bytes = op.row_bytes;
  const std::uint64_t limit = op.line.capacity;
  const std::uint32_t begin = tile.next;
  std::size_t group = 0;
  std::uint64_t done = 0;
  for (; tile.next < tile.end; ++tile.next) {
    const std::uint64_t row = row_index(h, q, tile.next, group);
    done += bytes;
    if (limit != 0 && row >= (group + 1) * limit) continue;  // beyond the expert's capacity
    if (back) {
      return_row(op, tile, row);
      continue;
    }
    const Range range = own().y(h.slot, stride, row, 1);
    const bool keep_private = q == rank_ && h.store == Store::far;
    std::byte* to =
        keep_private ? slot_of(h).area->rows.data() + row * stride : fabric_.claim(range);
    owner ? sum_choices(op, q, tile.next, to)
          : copy_row(h.store, to, op.own_y.row(static_cast<std::int64_t>(row)), bytes);
    if (!keep_private) fabric_.commit(range, q == rank_ ? Store::near : h.store);
  }
  owner ? fabric_.work({Work::Kind::reduce, done}) : op.copied.add_relaxed(done);
  fabric_.order(Ordering::before_flag);  // orders: this lane's streamed rows before the tile's end
  return static_cast<int>(tile.end - begin);
}

// Puts an output into the inbox of its source.
template <Fabric F>
void EngineImpl<F>::return_row(const Op& op, const Tile& tile, std::uint64_t row) {
  HandleState& h = *op.handle;
  const auto q = static_cast<int>(tile.peer);
  const bool owner = h.routed->options.weighting == Weighting::owner;
  const std::uint64_t stride = op.stride;
  const std::uint64_t entry = h.routed->first_entry[tile.peer] + std::uint64_t{tile.next};
  const std::byte* from = op.own_y.row(static_cast<std::int64_t>(row));
  if (returns_encoded(*h.routed)) {
    std::byte* sum = slot_of(h).area->rows.data() + row * stride;  // nobody reads the row any more
    if (owner) sum_choices(op, q, tile.next, sum);
    return return_encoded(op, q, entry, owner ? sum : from);
  }
  const Range range = layout(q).back(h.slot, stride, entry, 1);
  std::byte* to = fabric_.claim_at(q, range);
  owner ? sum_choices(op, q, tile.next, to) : copy_row(h.store, to, from, op.row_bytes);
  fabric_.commit_at(q, range, h.store);
}

// With fence, outputs are told of once the fabric has said that they are there.
template <Fabric F>
bool EngineImpl<F>::are_acknowledged(const Op& op) {
  const Routed& routed = *op.handle->routed;
  if (is_bulk(routed) || !returns(routed) || op.announced) return true;
  if (!op.send.idle()) return false;
  for (int q = 0; q < config_.size; ++q) {
    if (q == rank_ || lost_.contains(q)) continue;
    const bool got = routed.receive.sources[static_cast<std::size_t>(q)].num_rows() != 0;
    if (got && !fabric_.flushed(q)) return false;
  }
  return true;
}

// Once all own outputs are stored. Returns whether it told so now.
template <Fabric F>
int EngineImpl<F>::announce_outputs(Op& op) {
  if (op.announced || !op.send.idle()) return 0;
  // acquires: the outputs of all experts, where publish() announces them on any lane.
  if (op.unpublished.load_acquire() != 0) return 0;
  // publishes: outputs and base table of this epoch, to advance_owner() of every peer; without the
  // order a peer would sum the outputs of an earlier epoch.
  fabric_.store_flag(own().out(op.handle->slot), 2 * op.line.epoch);
  op.announced = op.sent = true;
  return 1;
}

template <Fabric F>
int EngineImpl<F>::advance_combine(Op& op) {
  HandleState& h = *op.handle;
  if (!op.published && op.tell.idle()) publish(op);
  int done = !is_acknowledged_ || are_acknowledged(op) ? announce_outputs(op) : 0;
  const bool encoded = returns_encoded(*h.routed);
  bool changed = false;
  const bool by_expert = !op.early.empty();
  op.waiting.for_each([&](int q) {
    const bool advanced = advance_owner(op, q);
    if (advanced) op.waiting.erase(q);
    if (advanced && encoded && q != rank_) op.decoding.insert(q);
    changed = changed || !op.waiting.contains(q);  // ready, or given up
  });
  if (encoded && op.decoding.meets(lost_)) done += look_at_lost_owners(op);
  if (!failed_.ok()) return done;
  if (changed) {
    ++done;
    // publishes: who is absent, to gather_token() on any lane, before `ready` says so of them.
    op.lost.store_release(op.absent);
    RankSet ready = h.routed->send.owners;
    ready -= op.waiting;
    if (sums_by_host(*h.routed)) add_ready_hosts(op, ready);
    // publishes: the bases of these owners, to gather_token() on any lane; without the order it
    // would take addresses from half a table.
    op.ready.store_release(ready);
  }
  if (!op.early.empty()) {
    if (!by_expert) ++done;
    // publishes: the bases of owners that announce their experts one by one; likewise.
    op.early_ready.store_release(op.early);
  }
  if ((op.sent || op.line.by_expert != 0) && !op.placed) {
    const std::uint32_t tokens = h.routed->send.num_tokens;
    op.receive.add(0, tokens, tiles_of(tokens * op.stride, kTilesForAll));
    op.placed = true;
    ++done;
  }
  if (!op.relaying.empty()) done += advance_sums(op);
  if (op.published && op.sent && op.placed && op.waiting.empty() && op.receive.idle() &&
      op.relaying.empty()) {
    // publishes: all my reads of this epoch are over, to next_slot() of every peer; without the
    // order they would overwrite rows that are still being summed.
    if (encoded) tidy_returned(op);
    fabric_.store_flag(own().done(h.slot), h.epoch);
    end_lease(h);
    finish(op);
    ++done;
  }
  return done;
}

// True once rank q's outputs can be read.
template <Fabric F>
bool EngineImpl<F>::advance_owner(Op& op, int q) {
  auto& stage = op.stage[static_cast<std::size_t>(q)];
  if (q == rank_) {
    const ReceivePlan& plan = op.handle->routed->receive;
    const auto groups = static_cast<std::size_t>(plan.groups);
    std::uint32_t* own = op.bases.data() + op.first_base[static_cast<std::size_t>(q)];
    const bool by_expert = op.line.by_expert != 0;
    const bool known = op.early.contains(q);
    if ((op.sent || by_expert) && !known) {
      std::copy_n(plan.bases.data() + static_cast<std::size_t>(q) * groups, groups, own);
    }
    if (by_expert) op.early.insert(q);
    return op.sent;
  }
  if (is_relayed(*op.handle->routed, q) && sums_by_host(*op.handle->routed)) {
    return advance_gateway(op, q);
  }
  const std::uint64_t out = layout(q).out(op.handle->slot);
  if (stage == Op::kOpLine && agree_on_op(op, q)) {
    stage = Op::kAnnouncement;
    // Its op line tells of its bases, too: they are older.
    if (op.theirs[static_cast<std::size_t>(q)].by_expert != 0 && read_bases(op, q)) {
      op.early.insert(q);
    }
  }
  if (stage == Op::kAnnouncement && returns_encoded(*op.handle->routed)) stage = Op::kRecord;
  // acquires: nothing; a release without combine starts no operation, so only `out` tells of it.
  const bool released = stage == Op::kOpLine && fabric_.load_flag(q, out) > 2 * op.line.epoch;
  if ((stage == Op::kAnnouncement || released) && announced(op, q, {out, 2 * op.line.epoch})) {
    stage = Op::kRecord;
  }
  if (stage != Op::kRecord) return false;
  if (op.theirs[static_cast<std::size_t>(q)].lacks != 0) {
    RankSet lacking;
    if (!read_ranks(q, layout(q).lacking(op.handle->slot), lacking)) return false;
    if (lacking.contains(rank_)) {
      op.absent.insert(q);
      report_loss(op, gateway_to(*op.handle->routed, hosts_.host_of(q)),
                  "it did not relay my rows");
      return true;
    }
  }
  if (op.early.contains(q) || op.helpers.contains(q)) return true;
  if (!returns(*op.handle->routed)) return read_bases(op, q);
  find_window_bases(op, q);
  return true;
}

// The owner has put its outputs back in the order of my entries.
template <Fabric F>
void EngineImpl<F>::find_window_bases(Op& op, int q) {
  const Routed& routed = *op.handle->routed;
  const SendPlan& plan = routed.send;
  const auto owner = static_cast<std::size_t>(q);
  std::uint32_t next = plan.off[owner];
  std::uint32_t* bases = op.bases.data() + op.first_base[owner];
  if (!is_by_expert(routed.shape.layout)) {
    *bases = next;
    return;
  }
  for (std::int32_t p = config_.experts.first[owner]; p < config_.experts.first[owner + 1]; ++p) {
    *bases++ = next;
    next += plan.group_rows[static_cast<std::size_t>(p)];
  }
}

// Copies the owner's base table for this rank and checks that every own row lies inside its area.
template <Fabric F>
bool EngineImpl<F>::read_bases(Op& op, int q) {
  const HandleState& h = *op.handle;
  const auto groups = static_cast<std::size_t>(h.routed->shape.groups(config_.experts, q));
  const Range range = layout(q).bases(h.slot, rank_, groups);
  const std::byte* table = fabric_.acquire(q, range);
  if (table == nullptr) return false;
  std::uint32_t* bases = op.bases.data() + op.first_base[static_cast<std::size_t>(q)];
  std::memcpy(bases, table, range.bytes);
  fabric_.release(q, range);
  return bases_fit(op, q);
}

// Rows beyond an expert's capacity have no place, and are left out wherever rows are touched.
template <Fabric F>
bool EngineImpl<F>::bases_fit(Op& op, int q) {
  const HandleState& h = *op.handle;
  const auto groups = static_cast<std::size_t>(h.routed->shape.groups(config_.experts, q));
  const std::uint32_t* bases = op.bases.data() + op.first_base[static_cast<std::size_t>(q)];
  const std::uint64_t capacity = op.theirs[static_cast<std::size_t>(q)].capacity;
  const bool by_expert = is_by_expert(op.line.layout);
  const std::size_t first_group =
      by_expert ? static_cast<std::size_t>(config_.experts.first[static_cast<std::size_t>(q)])
                : static_cast<std::size_t>(q);
  if (capacity != 0) return true;  // each row is checked against its expert's
  const std::uint64_t most = config_.max_rows(q);
  const std::uint32_t* rows = h.routed->send.group_rows.data() + first_group;
  std::uint64_t end = 0;
  for (std::size_t g = 0; g < groups; ++g) end = std::max(end, std::uint64_t{bases[g]} + rows[g]);
  if (end <= most) return true;
  Status status = status_of(op, Code::corrupt);
  status.peer = static_cast<std::int16_t>(q);
  status.what = "base";
  status.expected = most;
  status.seen = end;
  fail(status);
  return false;
}

// Where the outputs of a row that this rank sent to `owner` are; null while they are being fetched.
template <Fabric F>
const std::byte* EngineImpl<F>::output_row(Op& op, int owner, std::uint64_t row,
                                           std::byte* scratch) {
  HandleState& h = *op.handle;
  const std::uint64_t stride = op.stride;
  if (owner != rank_) {
    if (returns(*h.routed)) {
      if (returns_encoded(*h.routed)) return take_returned(op, owner, row, scratch);
      return fabric_.inbox(own().back(h.slot, stride, row, 1));
    }
    return fabric_.acquire(owner, layout(owner).y(h.slot, stride, row, 1));
  }
  if (h.routed->options.weighting != Weighting::owner) {
    return op.own_y.row(static_cast<std::int64_t>(row));
  }
  if (h.store == Store::far) return slot_of(h).area->rows.data() + row * stride;
  return fabric_.claim(own().y(h.slot, stride, row, 1));
}

// Such a row had no place at its expert.
template <Fabric F>
bool EngineImpl<F>::is_beyond(const Op& op, const RowRef& ref, std::uint64_t row) const {
  const std::uint64_t capacity =
      ref.rank == rank_ ? op.line.capacity : op.theirs[ref.rank].capacity;
  return capacity != 0 && row >= (ref.group + std::uint64_t{1}) * capacity;
}

// Collects the addresses of a token's rows. False while one of them is not there; all are asked
// for.
template <Fabric F>
bool EngineImpl<F>::gather_token(Op& op, std::uint32_t token, TokenRows& out) {
  HandleState& h = *op.handle;
  const SendPlan& plan = h.routed->send;
  // Most often the row that was missing last time still is: that is one look instead of many.
  if (out.missing.rank >= 0 &&
      !op.lost.load_acquire(out.missing.rank) &&  // acquires: nothing; that it will not come
      output_row(op, out.missing.rank, out.missing.row, out.scratch) == nullptr) {
    return false;
  }
  out.missing = {};
  out.count = 0;
  out.complete = true;
  bool open = false;  // the last row taken is not the end of its partial sum
  bool all_here = true;
  std::byte* scratch = out.scratch;
  for (std::uint32_t i = plan.ref_begin[token]; i < plan.ref_begin[token + 1]; ++i) {
    const RowRef ref = plan.refs[i];
    // acquires: the bases of this owner and whether it is absent; advance_combine() stored both
    // before. Without the order the address would come from half a table.
    if (!op.ready.load_acquire(ref.rank) && !is_out(op, ref)) return false;
    // acquires: nothing more; `ready` was looked at first. What an owner announced before it was
    // lost is there.
    if (op.lost.load_acquire(ref.rank) && !is_out(op, ref)) {
      // With allgather the sums of all ranks are read, of some only zeros.
      if (!h.routed->shape.every_token || plan.has_entry(ref.rank, token)) out.complete = false;
      continue;
    }
    const std::uint64_t row = row_of(op, ref);
    if (is_beyond(op, ref, row)) {
      out.complete = false;  // it had no place at its expert
      if (open && !plan.group_end.empty() && plan.group_end[i] != 0) {
        out.ends[out.count - 1] = 1;  // its partial sum ends at the last row that is there
        open = false;
      }
      continue;
    }
    const std::byte* address = output_row(op, ref.rank, row, scratch);
    scratch += out.stride;
    if (address == nullptr) {
      out.missing = {ref.rank, row};
      all_here = false;
      continue;
    }
    out.rows[out.count] = address;
    if (!plan.ref_weights.empty()) out.weights[out.count] = plan.ref_weights[i];
    if (!plan.group_end.empty()) {
      out.ends[out.count] = plan.group_end[i];
      open = plan.group_end[i] == 0;
    }
    ++out.count;
  }
  return all_here;
}

template <Fabric F>
int EngineImpl<F>::reduce_tokens(Op& op, Tile& tile, int lane) {
  HandleState& h = *op.handle;
  const SendPlan& plan = h.routed->send;
  const std::uint32_t begin = tile.next;
  const bool weighted = is_by_expert(h.routed->options.layout) && op.line.unweighted == 0;
  TokenRows token;
  if (scratch_bytes_ != 0) {
    token.scratch = scratch_.data() + static_cast<std::size_t>(lane) * scratch_bytes_;
    token.stride = op.stride;
  }
  const bool mapped = fabric_.facts().mapped;
  token.missing = tile.missing;
  for (; tile.next < tile.end; ++tile.next) {
    if (!gather_token(op, tile.next, token)) break;
    for (const ConstRows& added : op.args.added) {
      if (added.data == nullptr) continue;
      token.rows[token.count] = added.row(tile.next);
      token.weights[token.count] = 1;
      token.ends[token.count++] = 1;
    }
    const RowSum sum{.rows = {token.rows.data(), token.count},
                     .weights = weighted ? token.weights.data() : nullptr,
                     .group_end = plan.group_end.empty() ? nullptr : token.ends.data(),
                     .hidden = op.line.hidden,
                     .dtype = op.line.dtype};
    fabric_.work({Work::Kind::reduce, token.count * op.row_bytes});
    if (fabric_.facts().moves_rows) sum_rows(sum, op.args.out.row(tile.next));
    h.valid[tile.next] = token.complete ? 1 : 0;
    if (!mapped) let_go(op, tile.next);
  }
  tile.missing = token.missing;
  return static_cast<int>(tile.next - begin);
}

// The rows of a token that has been summed, where they are not read in place.
template <Fabric F>
void EngineImpl<F>::let_go(const Op& op, std::uint32_t token) {
  const HandleState& h = *op.handle;
  const bool encoded = returns_encoded(*h.routed);
  if ((returns(*h.routed) && !encoded) || sums_by_host(*h.routed)) return;
  const SendPlan& plan = h.routed->send;
  for (std::uint32_t i = plan.ref_begin[token]; i < plan.ref_begin[token + 1]; ++i) {
    const RowRef ref = plan.refs[i];
    // acquires: who is absent, as gather_token() saw it.
    if (ref.rank == rank_ || op.lost.load_acquire(ref.rank)) continue;
    const std::uint64_t row = row_of(op, ref);
    if (is_beyond(op, ref, row)) continue;
    encoded ? free_returned(op, ref.rank, row)
            : fabric_.release(ref.rank, layout(ref.rank).y(h.slot, op.stride, row, 1));
  }
}

}  // namespace ubep
