// Received rows: where each goes, the copies that bring it there, and the views of it.
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

// Received rows: in the inbox where a peer puts them at their final place, else private; with
// in_place where the outputs will be, unless a peer has pushed them elsewhere.
template <Fabric F>
std::byte* EngineImpl<F>::rows_area(const Op& op) {
  HandleState& h = *op.handle;
  if (h.in_out) return static_cast<std::byte*>(h.out.data);
  const DispatchOptions& options = h.routed->options;
  RankSet pushers = op.pushers;
  pushers -= op.absent;
  const bool pushed_in_place = !pushers.empty() && !to_windows(*h.routed);
  if (options.in_place && !pushed_in_place) return static_cast<std::byte*>(h.output.data);
  const bool packed = options.contiguous || options.path == Path::bsp ||
                      (is_by_expert(options.layout) && !pushed_in_place);
  if (!config_.push || packed || decodes(*h.routed)) return slot_of(h).area->rows.data();
  return fabric_.inbox(own().rows(h.slot, 1, 0, own().y_area_bytes()));
}

template <Fabric F>
void EngineImpl<F>::bind_rows(Op& op) {
  HandleState& h = *op.handle;
  std::byte* rows = rows_area(op);
  h.received.base = rows;
  h.received.stride_bytes = h.in_out ? h.out.stride() : static_cast<std::int64_t>(op.stride);
  if (h.routed->options.in_place) h.output.data = rows;
}

// rank_major rows have a place of their own per source: they need no other source's counts.
template <Fabric F>
bool EngineImpl<F>::copies_at_once(const HandleState& h) const {
  const DispatchOptions& o = h.routed->options;
  return !reads_in_place(o) && o.layout == Layout::rank_major && !o.contiguous && !o.in_place;
}

// Whether rows of rank q are copied to their place here: not those that are read where they are, or
// were pushed there.
template <Fabric F>
bool EngineImpl<F>::copies_from(const Op& op, int q) const {
  const HandleState& h = *op.handle;
  const DispatchOptions& o = h.routed->options;
  if (op.absent.contains(q)) return false;
  if (op.pushers.contains(q)) {
    return o.path == Path::bsp || decodes_ ||
           (to_windows(*h.routed) && (o.contiguous || o.in_place || is_by_expert(o.layout))) ||
           h.in_out;
  }
  if (q == rank_ && o.path == Path::allgather && !o.contiguous) return false;
  return !reads_in_place(o);
}

// Tiles for the sources whose rows can be copied now.
template <Fabric F>
void EngineImpl<F>::add_copies(Op& op) {
  HandleState& h = *op.handle;
  const bool bulk = h.routed->options.path == Path::bsp;
  if (bulk && (!op.placed || !op.sent || !op.coming.empty())) return;
  if (!op.placed && !copies_at_once(h)) return;
  if (op.by_expert) return;
  if (copies_by_expert(op)) {
    if (!h.encoder.is_plain() && !op.sent) return;
    op.by_expert = true;
    show_received(op);
    // publishes: the views, to received() on the thread that has seen an expert's rows.
    h.shown.store_release(1);
    op.receive.add(kAllOwners, static_cast<std::uint32_t>(config_.experts.num_local(rank_)),
                   static_cast<std::uint32_t>(lanes_));
    return;
  }
  if (h.sources == op.copying) return;
  RankSet ready = h.sources;
  ready -= op.copying;
  ready -= op.coming;
  if (!h.encoder.is_plain() && !pushes(*h.routed) && !op.sent) ready.erase(rank_);
  ready.for_each([&](int q) {
    op.copying.insert(q);
    if (!copies_from(op, q)) return;
    const std::uint32_t rows = h.routed->receive.sources[static_cast<std::size_t>(q)].num_rows();
    op.receive.add(static_cast<std::uint32_t>(q), rows, tiles_of(rows * op.stride, kTilesPerPeer),
                   op.pushers.contains(q), op.pushers.contains(q) ? batch_of(*h.routed, rows) : 1);
  });
}

// One expert's rows of all sources after the other's, for callers that use them as they come.
template <Fabric F>
bool EngineImpl<F>::copies_by_expert(const Op& op) const {
  const Routed& routed = *op.handle->routed;
  return routed.options.by_expert && routed.options.path == Path::pull && op.pushers.empty() &&
         fabric_.facts().mapped;
}

// The next expert of the tile.
template <Fabric F>
int EngineImpl<F>::pull_experts(Op& op, Tile& tile) {
  HandleState& h = *op.handle;
  const std::uint32_t expert = tile.next++;
  const ReceivePlan& plan = h.routed->receive;
  const std::uint64_t limit = op.line.capacity;
  auto* rows = const_cast<std::byte*>(h.received.base);
  const auto stride = static_cast<std::uint64_t>(h.received.stride_bytes);
  std::uint64_t copied = 0;
  h.sources.for_each([&](int q) {
    const SourceRows& source = plan.sources[static_cast<std::size_t>(q)];
    std::uint64_t to = plan.base(q, static_cast<int>(expert));
    for (std::uint32_t i = source.group_begin[expert]; i < source.group_begin[expert + 1]; ++i) {
      if (limit != 0 && to >= (expert + 1) * limit) break;  // beyond the expert's capacity
      const std::uint32_t token = source.row_token[i];
      const std::byte* from = q == rank_
                                  ? h.x.row(token)
                                  : fabric_.acquire(q, layout(q).x(h.slot, op.stride, token, 1));
      copy_row(Store::near, rows + to++ * stride, from, op.row_bytes);
      copied += op.row_bytes;
    }
  });
  op.copied.add_relaxed(copied);
  fabric_.work({Work::Kind::copy, copied});
  // publishes: the expert's rows, to the thread that polls for them.
  (void)h.experts.try_insert(expert);
  return 1;
}

template <Fabric F>
void EngineImpl<F>::source_arrived(Op& op, int q) {
  HandleState& h = *op.handle;
  SourceRows& source = h.routed->receive.sources[static_cast<std::size_t>(q)];
  const OpLine& theirs = q == rank_ ? op.line : op.theirs[static_cast<std::size_t>(q)];
  if (!op.cached) index_rows(config_.experts, h.routed->shape, rank_, theirs.tokens, source);
  if (q != rank_ && is_relayed(*h.routed, q)) {
    if (gateway_of(op, q) == rank_) op.relaying.insert(q);
    if (source.num_rows() != 0) op.coming.insert(q);
    return;
  }
  if (q == rank_ || (theirs.path != Path::push && theirs.path != Path::bsp)) return;
  if (h.routed->options.mapped_view) {  // it shows rows where a pushing source stores none
    Status status = status_of(op, Code::mismatch);
    status.peer = static_cast<std::int16_t>(q);
    status.what = "path (with mapped_view on one rank)";
    status.expected = static_cast<std::uint64_t>(h.routed->options.path);
    status.seen = static_cast<std::uint64_t>(theirs.path);
    fail(status);
    return;
  }
  op.pushers.insert(q);
  if (source.num_rows() == 0) return;
  (decodes(*h.routed) ? op.decoding : op.coming).insert(q);
}

// All sources are known: where every row goes.
template <Fabric F>
void EngineImpl<F>::place_rows(Op& op) {
  HandleState& h = *op.handle;
  // A repeated plan without the rows of those who are gone is a plan of its own.
  const bool new_plan = !op.cached || !op.absent.empty();
  if (new_plan && op.cached) h.routed = std::make_shared<Routed>(*h.routed);
  Routed& routed = *h.routed;
  if (new_plan) {
    op.absent.for_each([&](int q) {
      SourceRows& source = routed.receive.sources[static_cast<std::size_t>(q)];
      source.entries.clear();
      index_rows(config_.experts, routed.shape, rank_, 0, source);
    });
    make_receive_plan(config_.experts,
                      {.plan = routed.shape,
                       .rank = rank_,
                       .room = {.alignment = op.line.alignment, .capacity = op.line.capacity},
                       .want_pairs = routed.options.weighting == Weighting::owner},
                      routed.receive);
  }
  publish_bases(h);
  // Without it lanes may be at work on rows that are copied at once.
  if (h.out.data != nullptr) h.in_out = routed.receive.num_rows <= h.out.num_rows;
  if (op.line.capacity == 0) {
    fabric_.prepare(
        own().y(h.slot, output_stride(h), 0, static_cast<std::uint64_t>(routed.receive.num_rows)));
  }
  if (!copies_at_once(h)) bind_rows(op);  // else lanes are at work there
  zero_padding(h);
}

// Rows between the end of an expert and the next aligned start.
template <Fabric F>
void EngineImpl<F>::zero_padding(const HandleState& h) {
  const ReceivePlan& plan = h.routed->receive;
  if (h.routed->options.expert_alignment == 1 || plan.expert_counts.empty()) return;
  if (!fabric_.facts().moves_rows) return;
  const auto stride = static_cast<std::uint64_t>(h.received.stride_bytes);
  const auto bytes = static_cast<std::size_t>(h.x.row_bytes());
  auto* rows = const_cast<std::byte*>(h.received.base);
  for (std::size_t e = 0; e < plan.expert_counts.size(); ++e) {
    const std::int32_t end = plan.expert_offsets[e] + plan.expert_counts[e];
    for (std::int32_t i = end; i < plan.expert_offsets[e + 1]; ++i) {
      std::memset(rows + static_cast<std::uint64_t>(i) * stride, 0, bytes);
    }
  }
}

// Written now, announced by out; and by base, where pushing sources wait for it.
template <Fabric F>
void EngineImpl<F>::publish_bases(const HandleState& h) {
  const ReceivePlan& plan = h.routed->receive;
  if (plan.bases.empty()) return;
  const Range first = own().bases(h.slot, 0, static_cast<std::uint64_t>(plan.groups));
  const Range all{first.offset, plan.bases.size() * sizeof(std::uint32_t)};
  std::memcpy(fabric_.claim(all), plan.bases.data(), all.bytes);
  fabric_.commit(all, Store::near);
  if (!config_.push || sums_bases()) return;
  // publishes: the base table, to find_bases() of every source that pushes; without the order rows
  // would be put where those of an earlier epoch lay.
  fabric_.store_flag(own().base(h.slot), h.epoch);
}

// Output row of the `row`-th row of source q; `group` is a cursor for ascending rows.
template <Fabric F>
std::uint64_t EngineImpl<F>::row_index(const HandleState& h, int q, std::uint32_t row,
                                       std::size_t& group) const {
  const auto& begin = h.routed->receive.sources[static_cast<std::size_t>(q)].group_begin;
  while (row >= begin[group + 1]) ++group;
  return std::uint64_t{h.routed->receive.base(q, static_cast<int>(group))} + row - begin[group];
}

template <Fabric F>
int EngineImpl<F>::pull_rows(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  if (tile.peer == kAllOwners) return pull_experts(op, tile);
  if (tile.pushed && decodes(*h.routed)) return decode_rows(op, tile);
  const auto q = static_cast<int>(tile.peer);
  const SourceRows& source = h.routed->receive.sources[tile.peer];
  const bool at_once = copies_at_once(h);
  const std::uint64_t stride = op.stride;
  const std::size_t bytes = op.row_bytes;
  const bool in_place = tile.pushed && !to_windows(*h.routed);
  const bool relayed = is_relayed(*h.routed, q);
  const auto row_stride = static_cast<std::uint64_t>(h.received.stride_bytes);
  const std::uint64_t window = window_rows(*h.routed, rank_) * tile.peer;
  const std::uint64_t limit = op.line.capacity;
  // What leaves the caches before it is read need not be fetched into them to be written. Streaming
  // stores are of whole lines, which only rows of the library have.
  const bool streams = !h.in_out && source.num_rows() * stride > kCachedBytes;
  const Store store = streams ? Store::far : Store::near;
  std::uint64_t copied = 0;
  auto* rows = const_cast<std::byte*>(h.received.base);
  const std::uint32_t begin = tile.next;
  std::size_t group = 0;
  for (; tile.next < tile.end; ++tile.next) {
    const std::uint32_t token = source.row_token[tile.next];
    const Range range = layout(q).x(h.slot, stride, token, 1);
    const std::uint64_t to = at_once ? window + tile.next : row_index(h, q, tile.next, group);
    if (limit != 0 && to >= (group + 1) * limit) continue;  // beyond the expert's capacity
    const std::byte* from =
        q == rank_ ? h.x.row(token)
        : relayed  ? relayed_rows(op, q, token, 1)
        : tile.pushed
            ? fabric_.inbox(own().rows(h.slot, stride, in_place ? to : window + tile.next, 1))
            : fabric_.acquire(q, range);
    if (from == nullptr) break;
    copy_row(store, rows + to * row_stride, from, bytes);
    copied += bytes;
    if (q != rank_ && !tile.pushed && !relayed) fabric_.release(q, range);
  }
  fabric_.order(Ordering::before_flag);  // orders: this lane's streamed rows before the tile's end
  op.copied.add_relaxed(copied);
  fabric_.work({Work::Kind::copy, copied});
  return static_cast<int>(tile.next - begin);
}

// The views of Handle::received().
template <Fabric F>
void EngineImpl<F>::show_received(Op& op) {
  HandleState& h = *op.handle;
  const Routed& routed = *h.routed;
  const ReceivePlan& plan = routed.receive;
  const std::uint64_t stride = op.stride;
  op.unsent.for_each([&](int q) { zero_rows(op, q); });
  Received& r = h.received;
  r.layout = routed.options.layout;
  r.dtype = h.dtype;
  r.hidden = h.hidden;
  show_sent_row(h);
  r.topk = routed.shape.topk;
  r.epoch = h.epoch;
  r.sources = h.sources.low();
  h.any_more = wants_more(op);
  r.num_rows = plan.num_rows;
  r.src_stride_bytes = 0;
  const bool at_once = copies_at_once(h);
  h.row_table.clear();
  if (at_once || reads_in_place(routed.options)) {
    const std::uint64_t block = window_rows(routed, rank_);
    const bool all_copied = at_once && routed.options.path != Path::allgather;
    if (all_copied) r.src_stride_bytes = static_cast<std::int64_t>(block * stride);
    h.row_table.reserve(static_cast<std::size_t>(plan.num_rows));
    for (int q = 0; q < config_.size; ++q) {
      const SourceRows& source = plan.sources[static_cast<std::size_t>(q)];
      const bool own_place = q == rank_ && !all_copied;
      const bool in_block = !own_place && (at_once || op.pushers.contains(q));
      const bool is_lost = op.unsent.contains(q);  // relay
      const std::byte* x = own_place || in_block ? nullptr
                           : is_lost             ? no_row(h)
                           : is_relayed(routed, q)
                               ? relayed_rows(op, q, 0, 0)
                               : fabric_.acquire(q, layout(q).x(h.slot, stride, 0, 0));
      for (std::uint32_t i = 0; i < source.num_rows(); ++i) {
        const std::uint32_t token = is_lost ? 0 : source.row_token[i];
        h.row_table.push_back(in_block
                                  ? r.base + (static_cast<std::uint64_t>(q) * block + i) * stride
                              : own_place ? h.x.row(token)
                                          : x + token * stride);
      }
    }
    if (!all_copied) r.base = nullptr;
  }
  r.row_table = h.row_table;
  r.src_counts = plan.src_counts;
  r.topk_idx = plan.topk_idx;
  r.topk_weights = plan.topk_weights;
  if (h.in_out && !is_by_expert(r.layout)) mark_tail(h);
  r.expert_rows = plan.expert_rows;
  r.expert_counts = plan.expert_counts;
  r.expert_offsets = plan.expert_offsets;
  h.output.num_rows = routed.options.weighting == Weighting::owner
                          ? static_cast<std::int64_t>(plan.expert_rows.size())
                          : plan.num_rows;
  h.output.hidden = h.hidden;
  h.output.dtype = h.dtype;
  h.output.stride_bytes = static_cast<std::int64_t>(output_stride(h));
  show_mapped(op);
}

// Rows of the caller's tensor that nobody sent.
template <Fabric F>
void EngineImpl<F>::mark_tail(HandleState& h) {
  Received& r = h.received;
  const auto per_row = static_cast<std::size_t>(h.routed->options.topk1 ? 1 : r.topk);
  const std::size_t size = static_cast<std::size_t>(h.out.num_rows) * per_row;
  h.topk_idx.assign(r.topk_idx.begin(), r.topk_idx.end());
  h.topk_idx.resize(size, -1);
  h.topk_weights.assign(r.topk_weights.begin(), r.topk_weights.end());
  h.topk_weights.resize(size, 0.0F);
  r.topk_idx = h.topk_idx;
  r.topk_weights = h.topk_weights;
}

// A layer: whether a rank that takes part has tokens for another round. All see the same.
template <Fabric F>
bool EngineImpl<F>::wants_more(const Op& op) const {
  const HandleState& h = *op.handle;
  bool more = h.round.more;
  if (h.round.number == 0) return false;
  h.sources.for_each([&](int q) {
    more = more || (q != rank_ && op.theirs[static_cast<std::size_t>(q)].more != 0);
  });
  return more;
}

// How a received row is to be read.
template <Fabric F>
void EngineImpl<F>::show_sent_row(HandleState& h) {
  Received& r = h.received;
  r.quant = h.routed->options.quant;
  r.row_bytes = h.x.row_bytes();
  r.scales = {};
  r.payloads = {};
  if (h.encoder.is_plain()) return;
  const SentRowLayout& sent = h.encoder.layout();
  r.payloads = sent.payloads;
  if (r.quant == Quant::none) return;
  r.scales = {.offset = static_cast<std::int64_t>(sent.row.scale_offset),
              .count = static_cast<std::int64_t>(sent.row.num_scales),
              .bytes = static_cast<std::int64_t>(sent.row.scale_bytes),
              .block = static_cast<std::int64_t>(sent.row.scale_block)};
}

// Received::mapped: all peers' x slots side by side, ids by (source, token).
template <Fabric F>
void EngineImpl<F>::show_mapped(Op& op) {
  HandleState& h = *op.handle;
  Received& r = h.received;
  r.mapped = nullptr;
  r.mapped_idx = {};
  r.mapped_weights = {};
  if constexpr (requires(Range range) { fabric_.map_side_by_side(range); }) {
    if (!h.routed->options.mapped_view || own().x_area_bytes() == 0) return;
    r.mapped = mapped_views_[static_cast<std::size_t>(h.slot)];
    r.mapped_rank_stride_bytes = static_cast<std::int64_t>(own().x_area_bytes());
    const auto topk = static_cast<std::size_t>(r.topk);
    const auto tokens = static_cast<std::size_t>(config_.max_tokens);
    h.mapped_idx.assign(static_cast<std::size_t>(config_.size) * tokens * topk, -1);
    h.mapped_weights.assign(h.mapped_idx.size(), 0.0F);
    for (std::size_t q = 0; q < h.routed->receive.sources.size(); ++q) {
      for (const Entry& entry : h.routed->receive.sources[q].entries) {
        const std::size_t cell = (q * tokens + entry.token) * topk + entry.k;
        h.mapped_idx[cell] = config_.experts.local[entry.expert];
        h.mapped_weights[cell] = entry.weight;
      }
    }
    r.mapped_idx = h.mapped_idx;
    r.mapped_weights = h.mapped_weights;
  }
}

// expert_padded: rows beyond an expert's capacity were left out. All: the caller's tensor is small.
template <Fabric F>
void EngineImpl<F>::report_overflow(Op& op) {
  const HandleState& h = *op.handle;
  if (h.out.data != nullptr && !h.in_out && op.status.ok()) {
    op.status = status_of(op, Code::no_capacity);
    op.status.what = "rows of out";
    op.status.expected = static_cast<std::uint64_t>(h.out.num_rows);
    op.status.seen = static_cast<std::uint64_t>(h.received.num_rows);
  }
  op.handle->received.overflow = op.handle->routed->receive.overflow;
  if (op.handle->received.overflow == 0 || !op.status.ok()) return;
  op.status = status_of(op, Code::no_capacity);
  op.status.what = "rows of an expert";
  op.status.expected = op.line.capacity;
  op.status.seen = op.handle->received.overflow;
}

}  // namespace ubep
