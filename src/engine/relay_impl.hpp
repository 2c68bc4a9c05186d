// relay: between hosts a token goes once to each host, to one rank there: its gateway for this
// source. The others read it in the gateway's inbox. In rank_major the gateway adds up the rows of
// its host's ranks and puts one sum for each token into the source's inbox.
//
// Inside a host rows are read where they are, as on `read`.
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

inline constexpr std::uint32_t kNoBase = ~0U;  // of a rank whose rows are missing in a sum

// ---- The source ----

template <Fabric F>
void EngineImpl<F>::plan_relay(Routed& routed) {
  if (routed.shape.every_token && hosts_.num_hosts() > config_.max_topk) {
    throw Error(ErrorCode::invalid_argument,
                "path is allgather between " + std::to_string(hosts_.num_hosts()) +
                    " hosts, expected at most max_topk = " + std::to_string(config_.max_topk));
  }
  list_host_tokens(routed.send, hosts_, rank_, routed.host_tokens);
  int most = 1;  // ranks of a host
  for (int h = 0; h < hosts_.num_hosts(); ++h)
    most = std::max(most, hosts_.end(h) - hosts_.first(h));
  int shift = 0;
  while (shift < most && !reaches_all(shift)) ++shift;
  routed.relay_shift = static_cast<std::uint8_t>(shift % most);
}

// Whether no gateway is lost of a host where others are not.
template <Fabric F>
bool EngineImpl<F>::reaches_all(int shift) const {
  for (int h = 0; h < hosts_.num_hosts(); ++h) {
    if (h == my_host() || !lost_.contains(hosts_.gateway(rank_, h, shift))) continue;
    for (int r = hosts_.first(h); r < hosts_.end(h); ++r) {
      if (!lost_.contains(r)) return false;
    }
  }
  return true;
}

// Other hosts first: their rows have the longest way.
template <Fabric F>
void EngineImpl<F>::add_relay_tiles(Op& op) {
  const HandleState& h = *op.handle;
  const auto& tokens = h.routed->host_tokens.tokens;
  std::uint64_t bytes = 0;
  const auto add = [&](int host) {
    const auto rows = static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(host)].size());
    op.send.add(static_cast<std::uint32_t>(host), rows, tiles_of(rows * op.stride, kTilesPerPeer));
    bytes += rows * op.stride;
  };
  for (int host = 0; host < hosts_.num_hosts(); ++host) {
    if (host != my_host()) add(host);
  }
  fabric_.prepare(own().x(h.slot, op.stride, 0, op.line.tokens));
  add(my_host());
  if (bytes <= start_bytes()) (void)run_send_tiles(op);
}

// Tokens for one host; for the own one into the slot, where its ranks read them.
template <Fabric F>
int EngineImpl<F>::relay_rows(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  const Routed& routed = *h.routed;
  const auto host = static_cast<int>(tile.peer);
  const bool here = host == my_host();
  const int gateway = here ? rank_ : gateway_to(routed, host);
  const std::vector<std::uint32_t>& tokens = routed.host_tokens.tokens[tile.peer];
  const std::uint32_t begin = tile.next;
  for (; tile.next < tile.end; ++tile.next) {
    const std::uint32_t token = tokens[tile.next];
    const std::byte* from = h.x.row(token);
    const Range range = here ? own().x(h.slot, op.stride, token, 1)
                             : layout(gateway).relay(h.slot, rank_, op.stride, token, 1);
    std::byte* to = here ? fabric_.claim(range) : fabric_.claim_at(gateway, range);
    const Store store = here ? h.store : Store::near;
    if (to != from) copy_row(store, to, from, op.row_bytes);  // input() may have handed it out
    here ? fabric_.commit(range, store) : fabric_.commit_at(gateway, range, store);
  }
  op.copied.add_relaxed(std::uint64_t{tile.end - begin} * op.row_bytes);
  fabric_.order(Ordering::before_flag);  // orders: this lane's rows before the tile's end
  return static_cast<int>(tile.end - begin);
}

template <Fabric F>
void EngineImpl<F>::tell_gateways(const Op& op) {
  for (int host = 0; host < hosts_.num_hosts(); ++host) {
    if (host == my_host()) continue;
    const int gateway = gateway_to(*op.handle->routed, host);
    // publishes: all my tokens for that host, to serve_sources() of its gateway; without the order
    // its ranks would read those of an earlier epoch.
    fabric_.signal(gateway, own().sent(op.handle->slot, gateway), op.line.epoch);
  }
}

// Whose part of the record rank r reads: [first, end). A gateway adds up for all ranks of its host.
template <Fabric F>
std::array<int, 2> EngineImpl<F>::told_ranks(const Op& op, int r) const {
  const Routed& routed = *op.handle->routed;
  const int host = hosts_.host_of(r);
  const bool all = sums_by_host(routed) && !routed.shape.every_token && host != my_host() &&
                   gateway_to(routed, host) == r;
  return all ? std::array{hosts_.first(host), hosts_.end(host)} : std::array{r, r + 1};
}

// ---- The gateway of a dispatch, and those who read in its inbox ----

template <Fabric F>
const std::byte* EngineImpl<F>::relayed_rows(const Op& op, int q, std::uint64_t token,
                                             std::uint64_t count) {
  const int gateway = gateway_of(op, q);
  return fabric_.inbox_of(gateway,
                          layout(gateway).relay(op.handle->slot, q, op.stride, token, count));
}

// What is shown in place of a row that did not come: zeros, which nobody else reads or writes.
template <Fabric F>
const std::byte* EngineImpl<F>::no_row(HandleState& h) {
  std::byte* row = slot_of(h).area->rows.data();
  if (fabric_.facts().moves_rows) {
    std::memset(row, 0, static_cast<std::size_t>(h.x.row_bytes()));
  }
  return row;
}

// Of what a host gives back: its first place among the outputs that come back.
template <Fabric F>
std::uint32_t EngineImpl<F>::first_sum(const Routed& r, int host) const {
  return r.shape.every_token ? static_cast<std::uint32_t>(host * config_.max_tokens)
                             : r.send.off[static_cast<std::size_t>(hosts_.first(host))];
}

// The record of q for all ranks of this host, where I shall add up for it.
template <Fabric F>
bool EngineImpl<F>::read_relayed(Op& op, int q, bool quietly) {
  Routed& routed = *op.handle->routed;
  if (!sums_by_host(routed) || !is_relayed(routed, q) || gateway_of(op, q) != rank_) return true;
  const auto ranks = static_cast<std::size_t>(hosts_.end(my_host()) - hosts_.first(my_host()));
  if (routed.shape.every_token) {
    list_all_rows({hosts_.first(my_host()), hosts_.end(my_host())},
                  op.theirs[static_cast<std::size_t>(q)].tokens,
                  routed.relayed[static_cast<std::size_t>(q)]);
    routed.relayed[static_cast<std::size_t>(q)].first = first_sum(routed, my_host());
    return true;
  }
  const Range head{layout(q).offsets(op.handle->slot).offset +
                       static_cast<std::uint64_t>(hosts_.first(my_host())) * 4,
                   (ranks + 1) * 4};
  const std::byte* offsets = fabric_.acquire(q, head);
  if (offsets == nullptr) return false;
  std::vector<std::uint32_t> off(ranks + 1);
  std::memcpy(off.data(), offsets, head.bytes);
  const std::uint64_t most =
      std::uint64_t{op.theirs[static_cast<std::size_t>(q)].tokens} * op.line.topk;
  if (!std::is_sorted(off.begin(), off.end()) || off.back() > most ||
      most > layout(q).max_entries()) {
    return refuse_record(op, q, {"record offset", most, off.back()}, quietly);
  }
  const Range body = layout(q).entries(op.handle->slot, off.front(), off.back() - off.front());
  const std::byte* place = fabric_.acquire(q, body);
  if (place == nullptr) return false;
  std::vector<Entry> entries(off.back() - off.front());
  if (!entries.empty()) std::memcpy(entries.data(), place, body.bytes);
  fabric_.release(q, head);
  fabric_.release(q, body);
  for (std::size_t r = 0; r < ranks; ++r) {
    const OpDifference found =
        find_corruption(std::span(entries).subspan(off[r] - off[0], off[r + 1] - off[r]),
                        {.experts = &config_.experts,
                         .rank = hosts_.first(my_host()) + static_cast<int>(r),
                         .tokens = op.theirs[static_cast<std::size_t>(q)].tokens,
                         .topk = op.line.topk,
                         .layout = op.line.layout});
    if (found.field != nullptr) return refuse_record(op, q, found, quietly);
  }
  list_relayed_rows(entries, off, hosts_.first(my_host()),
                    routed.relayed[static_cast<std::size_t>(q)]);
  return true;
}

// As the gateway: tells this host's ranks whose tokens are here.
template <Fabric F>
int EngineImpl<F>::serve_sources(Op& op) {
  int done = 0;
  op.relaying.for_each([&](int q) {
    const Fate fate = fate_of(op, q, layout(q).sent(op.handle->slot, rank_));
    if (fate == Fate::waiting) return;
    op.relaying.erase(q);
    ++done;
    if (fate != Fate::stored) return refuse_source(op, q);
    // publishes: the tokens of q in my inbox, to look_for_relayed() of this host's ranks; without
    // the order they would read those of an earlier epoch.
    fabric_.store_flag(own().relayed(op.handle->slot, q), 2 * op.line.epoch);
  });
  return done;
}

// What q has for this host will not come through me: whoever has heard of it waits for that.
template <Fabric F>
void EngineImpl<F>::refuse_source(const Op& op, int q) {
  const bool dispatching = op.line.kind == OpKind::dispatch;
  if (!dispatching && !sums_by_host(*op.handle->routed)) return;
  const std::uint64_t offset =
      dispatching ? own().relayed(op.handle->slot, q) : own().summed(op.handle->slot, q);
  // acquires: nothing; whether it was told already.
  if (fabric_.load_flag(rank_, offset) >= 2 * op.line.epoch) return;
  // publishes: nothing else.
  dispatching ? fabric_.store_flag(offset, 2 * op.line.epoch + 1)
              : fabric_.signal(q, offset, 2 * op.line.epoch + 1);
}

// An operation that is released serves nobody any more.
template <Fabric F>
void EngineImpl<F>::refuse_sources(const Op& op) {
  for (int q = 0; q < config_.size; ++q) {
    const bool waits = op.line.kind == OpKind::dispatch || op.relaying.contains(q);
    if (waits && !hosts_.same(q, rank_)) refuse_source(op, q);
  }
}

// As one of its ranks: which sources' tokens are in their gateways' inboxes.
template <Fabric F>
int EngineImpl<F>::look_for_relayed(Op& op) {
  int done = 0;
  op.coming.for_each([&](int q) {
    const int gateway = gateway_of(op, q);
    const std::uint64_t offset = layout(gateway).relayed(op.handle->slot, q);
    const std::uint64_t here = 2 * op.line.epoch;
    const bool is_lost = lost_.contains(gateway);
    // acquires: the tokens of q in that inbox. When the gateway is lost the look comes after it.
    const std::uint64_t seen = fabric_.load_flag(gateway, offset);
    if (seen < here && !is_lost) return;
    op.coming.erase(q);
    ++done;
    if (seen == here) return;
    op.unsent.insert(q);
    op.handle->sources.erase(q);
    report_loss(op, is_lost ? gateway : q, "what it sends is not relayed");
  });
  return done;
}

// ---- The gateway of a combine ----

// A source waits for its gateways, which answer for their hosts, and for the ranks of its own; a
// gateway also for ranks whose outputs only others need.
template <Fabric F>
void EngineImpl<F>::begin_sums(Op& op) {
  const Routed& routed = *op.handle->routed;
  op.waiting.clear();
  routed.send.owners.for_each([&](int owner) {
    const int host = hosts_.host_of(owner);
    op.waiting.insert(host == my_host() ? owner : gateway_to(routed, host));
  });
  for (int q = 0; q < config_.size; ++q) {
    if (!is_relayed(routed, q)) continue;
    const RelayedRows& relayed = routed.relayed[static_cast<std::size_t>(q)];
    if (relayed.num_tokens() == 0 || !op.handle->sources.contains(q)) continue;
    op.relaying.insert(q);
    for (const RowRef& row : relayed.rows) {
      if (row.rank == rank_ || op.waiting.contains(row.rank)) continue;
      op.waiting.insert(row.rank);
      op.helpers.insert(row.rank);
    }
  }
}

// True once the gateway has said all it will.
template <Fabric F>
bool EngineImpl<F>::advance_gateway(Op& op, int q) {
  auto& stage = op.stage[static_cast<std::size_t>(q)];
  if (stage == Op::kOpLine && agree_on_op(op, q)) stage = Op::kAnnouncement;
  const int slot = op.handle->slot;
  // acquires: nothing; a release without combine starts no operation, so only `out` tells of it.
  if (fabric_.load_flag(q, layout(q).out(slot)) > 2 * op.line.epoch) {
    return announced(op, q, {layout(q).out(slot), 2 * op.line.epoch});
  }
  if (stage == Op::kOpLine) {
    return lost_.contains(q) && take_missing(op, q, true);
  }
  const bool is_lost = lost_.contains(q);
  // acquires: the sums of its host, in my inbox, and which ranks are missing in them.
  const std::uint64_t seen = fabric_.load_flag(q, layout(q).summed(slot, rank_));
  if (seen < 2 * op.line.epoch && !is_lost) return false;
  return take_missing(op, q, seen != 2 * op.line.epoch);
}

// Bits of ranks, for rank `to` alone.
template <Fabric F>
void EngineImpl<F>::tell_ranks(Range place, const RankSet& ranks, int to) {
  std::byte* words = fabric_.claim(place);
  ranks.for_each_word(
      [&](std::size_t i, std::uint64_t word) { std::memcpy(words + i * 8, &word, sizeof(word)); });
  fabric_.commit(place, Store::near);
  if (!maps(to)) fabric_.replicate(to, {&place, 1});
}

// False while they are being fetched.
template <Fabric F>
bool EngineImpl<F>::read_ranks(int q, Range place, RankSet& ranks) {
  const std::byte* told = fabric_.acquire(q, place);
  if (told == nullptr) return false;
  ranks = RankSet(config_.size);
  for (int r = 0; r < config_.size; ++r) {
    const int bit = std::to_integer<int>(told[r / 8]) >> r % 8 & 1;
    if (bit != 0) ranks.insert(r);
  }
  fabric_.release(q, place);
  return true;
}

// Of a combine: sources that live and whose rows did not come must not take outputs for theirs.
template <Fabric F>
void EngineImpl<F>::note_lacking(Op& op) {
  const HandleState& h = *op.handle;
  RankSet lacking = RankSet::all(config_.size);
  lacking -= h.sources;
  if (lacking.empty()) return;
  op.line.lacks = 1;
  for (int r = 0; r < config_.size; ++r) {
    if (r != rank_) tell_ranks(own().lacking(h.slot), lacking, r);
  }
}

// Takes what a gateway says of its host. False while that is being fetched.
template <Fabric F>
bool EngineImpl<F>::take_missing(Op& op, int q, bool all) {
  RankSet missing = RankSet::all(config_.size);
  if (!all && !read_ranks(q, layout(q).missing(op.handle->slot), missing)) return false;
  const int host = hosts_.host_of(q);
  for (int r = hosts_.first(host); r < hosts_.end(host); ++r) {
    if (!missing.contains(r)) continue;
    op.absent.insert(r);
    if (all ? r == q : op.handle->routed->send.owners.contains(r)) {
      report_loss(op, r, "its outputs are not relayed");
    }
  }
  return true;
}

// Of owners that nothing is awaited from: those of other hosts whose gateway is awaited are not
// ready. Ranks whose outputs only others need are.
template <Fabric F>
void EngineImpl<F>::add_ready_hosts(const Op& op, RankSet& ready) const {
  const Routed& routed = *op.handle->routed;
  ready |= op.helpers;
  ready -= op.waiting;
  routed.send.owners.for_each([&](int owner) {
    const int host = hosts_.host_of(owner);
    if (host != my_host() && op.waiting.contains(gateway_to(routed, host))) ready.erase(owner);
  });
}

// As the gateway: adds up once the outputs of this host's ranks are there, and tells the sources.
template <Fabric F>
int EngineImpl<F>::advance_sums(Op& op) {
  const Routed& routed = *op.handle->routed;
  int done = 0;
  op.relaying.for_each([&](int q) {
    const auto i = static_cast<std::size_t>(q);
    const RelayedRows& relayed = routed.relayed[i];
    if (op.summing.contains(q)) {
      // acquires: the sums, by all lanes.
      if (op.left[i].load_acquire() != 0) return;
      op.relaying.erase(q);
      tell_sums(op, q);
      ++done;
      return;
    }
    if (lost_.contains(q)) {
      op.relaying.erase(q);
      ++done;
      return;
    }
    const auto is_awaited = [&](const RowRef& row) { return op.waiting.contains(row.rank); };
    if (!op.sent || std::any_of(relayed.rows.begin(), relayed.rows.end(), is_awaited)) return;
    if (!read_sum_bases(op, q)) return;
    // publishes: nothing; the tiles do.
    op.left[i].store_release(relayed.num_tokens());
    op.relay.add(static_cast<std::uint32_t>(q), relayed.num_tokens(),
                 tiles_of(relayed.num_tokens() * op.stride, kTilesPerPeer));
    op.summing.insert(q);
    ++done;
  });
  return done;
}

// Where the rows of q begin on each rank of this host, checked before they are used.
template <Fabric F>
bool EngineImpl<F>::read_sum_bases(Op& op, int q) {
  const HandleState& h = *op.handle;
  const int first = hosts_.first(my_host());
  const auto ranks = static_cast<std::size_t>(hosts_.end(my_host()) - first);
  op.sum_bases.resize(static_cast<std::size_t>(config_.size) * ranks);
  std::uint32_t* bases = op.sum_bases.data() + static_cast<std::size_t>(q) * ranks;
  const RelayedRows& relayed = h.routed->relayed[static_cast<std::size_t>(q)];
  for (std::size_t r = 0; r < ranks; ++r) {
    const int owner = first + static_cast<int>(r);
    RankSet lacking(config_.size);
    if (owner != rank_ && op.theirs[static_cast<std::size_t>(owner)].lacks != 0 &&
        !read_ranks(owner, layout(owner).lacking(h.slot), lacking)) {
      return false;
    }
    if (op.absent.contains(owner) || lacking.contains(q)) {
      bases[r] = kNoBase;
    } else if (owner == rank_) {
      bases[r] = h.routed->receive.base(q, 0);
    } else {
      std::memcpy(&bases[r], fabric_.acquire(owner, layout(owner).bases(h.slot, q, 1)), 4);
    }
  }
  for (const RowRef& row : relayed.rows) {
    const std::uint32_t base = bases[static_cast<std::size_t>(row.rank - first)];
    if (base == kNoBase) continue;
    const std::uint64_t at = std::uint64_t{base} + row.index;
    const std::uint64_t most = config_.max_rows(row.rank);
    if (at < most) continue;
    Status status = status_of(op, Code::corrupt);
    status.peer = static_cast<std::int16_t>(row.rank);
    status.what = "base";
    status.expected = most;
    status.seen = at;
    fail(status);
    return false;
  }
  return true;
}

// Any lane.
template <Fabric F>
int EngineImpl<F>::sum_relayed(Op& op, Tile& tile) {
  const HandleState& h = *op.handle;
  const auto q = static_cast<int>(tile.peer);
  const RelayedRows& relayed = h.routed->relayed[tile.peer];
  const int first = hosts_.first(my_host());
  const auto ranks = static_cast<std::size_t>(hosts_.end(my_host()) - first);
  const std::uint32_t* bases = op.sum_bases.data() + tile.peer * ranks;
  const std::uint32_t begin = tile.next;
  std::array<const std::byte*, kMaxTopk> rows;
  for (; tile.next < tile.end; ++tile.next) {
    std::size_t count = 0;
    for (std::uint32_t i = relayed.begin[tile.next]; i < relayed.begin[tile.next + 1]; ++i) {
      const RowRef row = relayed.rows[i];
      if (bases[row.rank - first] == kNoBase) continue;
      const std::uint64_t at = std::uint64_t{bases[row.rank - first]} + row.index;
      const Range range = layout(row.rank).y(h.slot, op.stride, at, 1);
      rows[count++] = row.rank == rank_ ? fabric_.claim(range) : fabric_.acquire(row.rank, range);
    }
    const RowSum sum{
        .rows = {rows.data(), count}, .hidden = op.line.hidden, .dtype = op.line.dtype};
    const Range range = layout(q).back(h.slot, op.stride, relayed.first + tile.next, 1);
    fabric_.work({Work::Kind::reduce, count * op.row_bytes});
    std::byte* to = fabric_.claim_at(q, range);
    if (fabric_.facts().moves_rows) sum_rows(sum, to);
    fabric_.commit_at(q, range, Store::near);
  }
  fabric_.order(Ordering::before_flag);  // orders: this lane's sums before the tile's end
  // publishes: this lane's sums, to advance_sums().
  op.left[tile.peer].subtract_acq_rel(tile.end - begin);
  return static_cast<int>(tile.end - begin);
}

template <Fabric F>
void EngineImpl<F>::tell_sums(Op& op, int q) {
  const int first = hosts_.first(my_host());
  const int ranks = hosts_.end(my_host()) - first;
  RankSet missing(config_.size);
  for (int r = 0; r < ranks; ++r) {
    if (op.sum_bases[static_cast<std::size_t>(q * ranks + r)] == kNoBase) missing.insert(first + r);
  }
  tell_ranks(own().missing(op.handle->slot), missing, q);
  // publishes: the sums of this host's rows and who is missing in them, to advance_gateway() of q;
  // without the order it would add up those of an earlier epoch.
  fabric_.signal(q, own().summed(op.handle->slot, q), 2 * op.line.epoch);
}

// ---- The sums of sums ----

// The row of each host for a token, as gather_token() does it for ranks: what travelled as a sum,
// or a sum that is made and rounded here, in `scratch`.
template <Fabric F>
bool EngineImpl<F>::gather_hosts(Op& op, std::uint32_t token, std::byte* scratch, TokenRows& out) {
  const HandleState& h = *op.handle;
  const Routed& routed = *h.routed;
  const SendPlan& plan = routed.send;
  std::array<const std::byte*, kMaxTopk> rows;
  out.count = 0;
  out.complete = true;
  const std::uint32_t end = plan.ref_begin[token + 1];
  for (std::uint32_t i = plan.ref_begin[token]; i < end;) {
    const int host = hosts_.host_of(plan.refs[i].rank);
    const bool is_sum = sums_by_host(routed) && host != my_host();
    std::size_t count = 0;
    for (; i < end && hosts_.host_of(plan.refs[i].rank) == host; ++i) {
      const RowRef ref = plan.refs[i];
      // acquires: the bases of this owner, and whether it is absent; as in gather_token().
      if (!op.ready.load_acquire(ref.rank)) return false;
      // acquires: nothing more; likewise.
      if (op.lost.load_acquire(ref.rank)) {
        if (!routed.shape.every_token || plan.has_entry(ref.rank, token)) out.complete = false;
        continue;
      }
      if (count == rows.size()) broken_invariant("more rows of a token than choices");
      rows[count] = is_sum ? nullptr : output_row(op, ref.rank, row_of(op, ref), nullptr);
      if (!is_sum && rows[count] == nullptr) return false;
      ++count;
    }
    if (count == 0) continue;
    if (is_sum) {
      const auto at = static_cast<std::size_t>(host);
      const std::uint32_t row = first_sum(routed, host) + routed.host_tokens.place[at][token];
      out.rows[out.count++] = fabric_.inbox(own().back(h.slot, op.stride, row, 1));
      continue;
    }
    std::byte* sum = scratch + out.count * op.stride;
    if (fabric_.facts().moves_rows && count > 1) {
      sum_rows({.rows = {rows.data(), count}, .hidden = op.line.hidden, .dtype = op.line.dtype},
               sum);
    }
    out.rows[out.count++] = count > 1 ? sum : rows[0];
    fabric_.work({Work::Kind::reduce, count * op.row_bytes});
  }
  return true;
}

template <Fabric F>
int EngineImpl<F>::reduce_by_host(Op& op, Tile& tile, int lane) {
  HandleState& h = *op.handle;
  const std::uint32_t begin = tile.next;
  const auto num_hosts = static_cast<std::size_t>(hosts_.num_hosts());
  std::byte* scratch =
      host_sums_.data() + static_cast<std::size_t>(lane) * num_hosts * config_.max_stride;
  TokenRows token;
  for (; tile.next < tile.end; ++tile.next) {
    if (!gather_hosts(op, tile.next, scratch, token)) break;
    for (const ConstRows& added : op.args.added) {
      if (added.data != nullptr) token.rows[token.count++] = added.row(tile.next);
    }
    const RowSum sum{
        .rows = {token.rows.data(), token.count}, .hidden = op.line.hidden, .dtype = op.line.dtype};
    fabric_.work({Work::Kind::reduce, token.count * op.row_bytes});
    if (fabric_.facts().moves_rows) sum_rows(sum, op.args.out.row(tile.next));
    h.valid[tile.next] = token.complete ? 1 : 0;
    if (!fabric_.facts().mapped) let_go(op, tile.next);
  }
  return static_cast<int>(tile.next - begin);
}

}  // namespace ubep
