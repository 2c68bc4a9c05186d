// The engine over any fabric. The bodies: roles_impl.hpp, agree_impl.hpp, dispatch_impl.hpp,
// push_impl.hpp, slices_impl.hpp, relay_impl.hpp, wire_impl.hpp, place_impl.hpp, combine_impl.hpp
// and end_impl.hpp.
//
// To add a fabric: satisfy fabric/concept.hpp and instantiate EngineImpl in one .cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/invariant.hpp"
#include "base/math.hpp"
#include "engine/engine.hpp"
#include "engine/op.hpp"
#include "fabric/concept.hpp"
#include "memory/copy.hpp"
#include "memory/prefix_search.hpp"
#include "memory/row_kernels.hpp"
#include "memory/row_words.hpp"
#include "plan/roles.hpp"
#include "plan/schedule.hpp"
#include "protocol/protocols.hpp"
#include "protocol/record.hpp"
#include "protocol/segment_layout.hpp"

namespace ubep {

inline constexpr int kClaimTries = 1'000'000;  // of a caller that has already waited long
inline constexpr int kTriesPerYield = 1000;

template <Fabric F>
class EngineImpl final : public Engine {
 public:
  EngineImpl(F& fabric, const EngineOptions& options);

  Status start_dispatch(const Input& in, const RoutingView& routing, const DispatchOptions& options,
                        HandleState& handle) override;
  Status start_cached_dispatch(const Input& in, const HandleState& cached,
                               HandleState& handle) override;
  Status start_combine(HandleState& handle, const CombineArgs& args) override;
  bool publish_expert(HandleState& handle, int expert) override;
  const Status& failure() const override { return failed_; }
  int step(int lane, int lanes) override;
  void look_for_losses() override;
  Status waits_for(const HandleState* handle) const override;
  void release(HandleState& handle) override;
  Status input(std::int64_t num_tokens, std::int64_t hidden, DType dtype, Rows& x) override;
  void set_store(Store store) override { store_ = store; }
  void set_lanes(int lanes, const Roles& roles, SendOrder order) override {
    lanes_ = lanes;
    send_order_ = order;
    wanted_roles_ = roles;
  }
  bool pending() const override { return !order_.empty(); }
  bool holds_lease() const override {
    return std::any_of(slots_.begin(), slots_.end(),
                       [](const Slot& slot) { return slot.leased && !slot.combining; });
  }
  Roles roles() const override { return roles_; }
  void set_tracer(Tracer* tracer) override { tracer_ = tracer; }
  bool is_dispensable() const override;
  void close() override;

 private:
  // engine_impl.hpp
  static std::uint64_t stride_of(const ConstRows& rows) {
    return round_up(static_cast<std::uint64_t>(rows.row_bytes()), kLineBytes);
  }
  static std::uint64_t output_stride(const HandleState& h) {
    return stride_of(ConstRows(nullptr, 0, h.hidden, h.dtype));
  }
  static void set_rows(Op& op, const ConstRows& rows) {
    op.row_bytes = static_cast<std::size_t>(rows.row_bytes());
    op.stride = stride_of(rows);
  }
  const SegmentLayout& layout(int rank) const { return layouts_[static_cast<std::size_t>(rank)]; }
  const SegmentLayout& own() const { return layout(rank_); }
  Slot& slot_of(const HandleState& h) { return slots_[static_cast<std::size_t>(h.slot)]; }
  PrivateArea* take_area();
  void end_lease(HandleState& h);
  Op* find(const HandleState& handle) const;
  Op& free_op();
  int control(int lane);
  int run_send_tiles(Op& op);
  int run_receive_tiles(Op& op, int lane);
  std::uint32_t tiles_of(std::uint64_t bytes, std::uint32_t most) const {
    return tiles_for(bytes, tile_bytes_, most);
  }
  void copy_row(Store store, std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (fabric_.facts().moves_rows) copy_with(store, to, from, bytes);
  }
  int run_tiles(int lane);
  int advance(Op& op);
  Status status_of(const Op& op, Code code) const;
  Status not_ready(OpKind kind, const char* what) const;

  // end_impl.hpp
  void fail(const Status& status);
  void tell_failure();
  int retire(Op& op, const Status& status);
  int retire_all(const Status& status);
  void abandon_fetches(const Op& op);
  void abandon_fetches(const Op& op, int q);
  void finish(Op& op);

  // roles_impl.hpp
  int work_on(int lane);
  void split_roles(const Op& op);
  void deal_peers(TileBoard& board, int shares) const;
  void add_shares(Op& op);
  int hear(int lane);
  bool has_sent(Op& op, int q);
  int hear_share(Op& op, Tile& share);
  void hear_alone(Op& op);
  bool is_heard(Op& op, int q);
  bool doubt(Op& op);
  // Several lanes would wait while the one that starts an operation stores all rows.
  std::uint64_t start_bytes() const { return lanes_ > 1 ? 0 : start_bytes_; }
  bool counts(int lane) const { return lanes_ == 1 || lane < roles_.count; }
  bool receives(int lane) const { return lanes_ > 1 && lane >= roles_.count + roles_.send; }
  bool counts_only() const;
  void note_awaited(int done);
  void barrier();
  void charge(int lane, Activity activity) const;
  void charge_wait(int lane) const;

  // agree_impl.hpp
  struct Awaited {
    std::uint64_t offset;
    std::uint64_t value;
  };
  bool announced(Op& op, int q, Awaited word, bool quietly = false);
  void give_up_on(Op& op, int q);
  void report_loss(Op& op, int q, const char* how = nullptr);
  bool agree_on_op(Op& op, int q, bool quietly = false);
  OpLine next_line(const HandleState& h, OpKind kind, const ConstRows& rows);
  void publish(Op& op);
  // Telling every peer takes a while: lanes that count do it while others send. In bsp all do, and
  // a dispatch's flags wait until its rows are put.
  bool tells_in_shares(const Routed& r) const {
    return lanes_ > 1 && !fabric_.facts().mapped && (pushes(r) || config_.returns);
  }
  void write_op_line(const Op& op);
  void begin_telling(Op& op);
  int tell_share(Op& op, Tile& share);
  void tell_peer(Op& op, int r);
  void finish_telling(Op& op);
  Status describe_wait(const HandleState& handle) const;
  void describe_rows(const Op& op, int q, Status& status) const;
  bool describe_relay(const Op& op, Status& status) const;

  // dispatch_impl.hpp
  Status next_slot(bool uses_input, std::uint64_t& epoch) const;
  void check_input(const Input& in, Quant quant) const;
  void map_view(const DispatchOptions& options, int slot);
  void begin_dispatch(const Input& in, HandleState& handle, bool cached);
  void begin_lease(const Input& in, HandleState& h);
  void stage_rows(HandleState& h);
  void begin_encoding(Op& op);
  void end_encoding(Op& op);
  void write_record(const HandleState& h);
  int announce_rows(Op& op);
  bool sends_in_bulk(Op& op, int& done);
  void add_token_tiles(Op& op, bool in_slot);
  void bind_areas(HandleState& h);
  int advance_dispatch(Op& op);
  bool advance_source(Op& op, int q, bool quietly);
  bool read_record_head(Op& op, int q, bool quietly);
  bool read_record(Op& op, int q, bool quietly);
  bool read_counts(Op& op, int q);
  bool refuse_record(Op& op, int q, const OpDifference& found, bool quietly);
  int encode_tokens(Op& op, Tile& tile);
  void encode_token(const HandleState& h, std::uint32_t token);
  int send_tokens(Op& op, Tile& tile);

  // place_impl.hpp
  void source_arrived(Op& op, int q);
  void place_rows(Op& op);
  void show_received(Op& op);
  bool wants_more(const Op& op) const;
  void show_sent_row(HandleState& h);
  void show_mapped(Op& op);
  static void mark_tail(HandleState& h);
  void report_overflow(Op& op);
  void zero_padding(const HandleState& h);
  void publish_bases(const HandleState& h);
  bool copies_at_once(const HandleState& h) const;
  bool copies_from(const Op& op, int q) const;
  void add_copies(Op& op);
  bool copies_by_expert(const Op& op) const;
  int pull_experts(Op& op, Tile& tile);
  std::byte* rows_area(const Op& op);
  void bind_rows(Op& op);
  std::uint64_t row_index(const HandleState& h, int q, std::uint32_t row, std::size_t& group) const;
  int pull_rows(Op& op, Tile& tile);

  // push_impl.hpp
  static bool pushes(const Routed& r) {
    return r.options.path == Path::push || r.options.path == Path::bsp;
  }
  bool to_windows(const Routed& r) const {
    return r.options.path == Path::bsp || !is_by_expert(r.shape.layout) || decodes_ ||
           config_.stage_pushed;
  }
  bool sums_bases() const {
    return std::int64_t{config_.size} * config_.experts.num_experts() <= most_counts_;
  }
  std::uint64_t window_rows(const Routed& routed, int owner) const;
  void plan_outgoing(Routed& routed);
  int push_windows(Op& op);
  int find_bases(Op& op);
  void add_push_tiles(Op& op, int owner);
  int push_rows(Op& op, Tile& tile);
  void end_push_tile(Op& op, int owner, std::uint32_t rows);
  int look_for_rows(Op& op);
  enum class Fate : std::uint8_t { waiting, stored, lost, released };
  Fate fate_of(Op& op, int q, std::uint64_t word_offset);
  Fate sum_bases_at(Op& op, int owner);
  Fate read_bases_at(Op& op, int owner);
  void leave_rows(Op& op);
  void zero_rows(Op& op, int q);
  void layout_bases(Op& op);

  // slices_impl.hpp
  bool slices(const Routed& r) const;
  bool by_token(const Routed& r) const;
  void add_slices(Op& op);
  void count_targets(Op& op, bool by_expert);
  void fill_schedule(Op& op, bool by_expert);
  void add_output_slices(Op& op);
  int return_slice(Op& op, Tile& slice);
  int push_slice(Op& op, Tile& slice);

  // wire_impl.hpp
  bool decodes(const Routed& r) const {  // bsp has flags of its own
    return decodes_ && r.options.path != Path::bsp;
  }
  std::uint32_t batch_of(const Routed& r, std::uint32_t rows) const {
    return decodes(r) ? protocol_.batch_rows(config_.checksum_rows, rows) : 1;
  }
  bool is_bulk(const Routed& r) const { return r.options.path == Path::bsp; }
  bool is_fenced(const Routed& r) const { return is_acknowledged_ && r.options.path == Path::push; }
  WireRow wire_row(const Op& op) const {
    return {.bytes = op.row_bytes,
            .epoch = op.line.epoch,
            .slot = op.handle->slot,
            .is_output = op.line.kind == OpKind::combine};
  }
  bool returns_encoded(const Routed& r) const { return decodes_ && returns(r) && !is_bulk(r); }
  void begin_windows(std::uint64_t first);
  void tell_windows_armed();
  bool windows_armed(int rank, int slot, std::uint64_t epoch) const;
  void tidy_windows(const HandleState& h);
  void mark_rows(Op& op);
  bool read_marks(Op& op, int q);
  bool is_marked(const Op& op, int q, std::uint32_t token) const;
  int push_encoded(Op& op, Tile& tile);
  void put_checksum(const WireRow& wire, int to, Range range, std::uint32_t sum);
  void return_encoded(const Op& op, int q, std::uint64_t entry, const std::byte* row);
  const std::byte* take_returned(const Op& op, int owner, std::uint64_t entry, std::byte* to);
  void free_returned(const Op& op, int owner, std::uint64_t entry);
  void tidy_returned(const Op& op);
  int look_at_lost_owners(Op& op);
  int decode_rows(Op& op, Tile& tile);
  bool decode_batch(Op& op, const Tile& tile, std::uint32_t end, std::size_t& group);
  std::byte* place_of(const Op& op, int q, std::uint32_t row, std::size_t& group) const;
  int look_at_lost_sources(Op& op);
  bool tell_rows(Op& op);
  void tell_rows_unfenced(Op& op);

  // relay_impl.hpp
  bool maps(int q) const {
    return fabric_.facts().mapped || (is_grouped_ && hosts_.same(q, rank_));
  }
  // allgather between hosts, too: as much care as for relay.
  bool relays(const Routed& r) const {
    return config_.relay && (r.options.path == Path::relay || r.options.path == Path::allgather);
  }
  // One row for each (token, host) comes back.
  bool sums_by_host(const Routed& r) const {
    return relays(r) && r.options.layout == Layout::rank_major;
  }
  // Rows are read where they are, or where their gateway has them.
  static bool reads_in_place(const DispatchOptions& o) {
    return o.path == Path::read || (o.path == Path::relay && o.layout == Layout::rank_major &&
                                    !o.contiguous && !o.in_place);
  }
  bool is_relayed(const Routed& r, int q) const { return relays(r) && !hosts_.same(q, rank_); }
  int my_host() const { return hosts_.host_of(rank_); }
  int gateway_of(const Op& op, int q) const {  // for what q has for this host
    return hosts_.gateway(q, my_host(), op.theirs[static_cast<std::size_t>(q)].relay_shift);
  }
  int gateway_to(const Routed& r, int host) const {
    return hosts_.gateway(rank_, host, r.relay_shift);
  }
  void plan_relay(Routed& routed);
  bool reaches_all(int shift) const;
  void add_relay_tiles(Op& op);
  int relay_rows(Op& op, Tile& tile);
  void tell_gateways(const Op& op);
  std::array<int, 2> told_ranks(const Op& op, int r) const;
  bool read_relayed(Op& op, int q, bool quietly);
  std::uint32_t first_sum(const Routed& r, int host) const;
  int look_for_relayed(Op& op);
  int serve_sources(Op& op);
  void refuse_sources(const Op& op);
  void refuse_source(const Op& op, int q);
  const std::byte* no_row(HandleState& h);
  const std::byte* relayed_rows(const Op& op, int q, std::uint64_t token, std::uint64_t count);
  void begin_sums(Op& op);
  bool advance_gateway(Op& op, int q);
  bool take_missing(Op& op, int q, bool all);
  void add_ready_hosts(const Op& op, RankSet& ready) const;
  int advance_sums(Op& op);
  void note_lacking(Op& op);
  void tell_ranks(Range place, const RankSet& ranks, int to);
  bool read_ranks(int q, Range place, RankSet& ranks);
  bool read_sum_bases(Op& op, int q);
  void tell_sums(Op& op, int q);
  int sum_relayed(Op& op, Tile& tile);
  int reduce_by_host(Op& op, Tile& tile, int lane);
  bool gather_hosts(Op& op, std::uint32_t token, std::byte* scratch, struct TokenRows& rows);

  // combine_impl.hpp
  // Owners put outputs into the sources' inboxes, instead of being read.
  bool returns(const Routed& r) const {
    return r.options.path == Path::bsp ||
           (config_.returns && !r.shape.every_token && r.options.layout != Layout::expert_padded &&
            !sums_by_host(r));
  }
  void bind_outputs(Op& op, const ConstRows& y);
  void begin_publishing(Op& op);
  bool is_out(const Op& op, const RowRef& ref) const;
  void add_output_tiles(Op& op);
  bool in_segment(const Op& op);
  bool are_acknowledged(const Op& op);
  int announce_outputs(Op& op);
  int advance_combine(Op& op);
  bool advance_owner(Op& op, int q);
  bool read_bases(Op& op, int q);
  bool bases_fit(Op& op, int q);
  void find_window_bases(Op& op, int q);
  int send_outputs(Op& op, Tile& tile);
  void return_row(const Op& op, const Tile& tile, std::uint64_t row);
  void sum_choices(const Op& op, int q, std::uint32_t row, std::byte* out) const;
  int reduce_tokens(Op& op, Tile& tile, int lane);
  void let_go(const Op& op, std::uint32_t token);
  std::uint64_t row_of(const Op& op, const RowRef& ref) const {
    return std::uint64_t{op.bases[op.first_base[ref.rank] + ref.group]} + ref.index;
  }
  bool is_beyond(const Op& op, const RowRef& ref, std::uint64_t row) const;
  const std::byte* output_row(Op& op, int owner, std::uint64_t row, std::byte* scratch);
  bool gather_token(Op& op, std::uint32_t token, struct TokenRows& rows);

  F& fabric_;
  GroupConfig config_;
  const RowProtocol& protocol_;
  bool decodes_;  // asked often
  bool arms_;
  bool is_acknowledged_;
  Store store_;  // of the next dispatch
  std::int64_t most_counts_;
  std::uint64_t tile_bytes_;
  std::uint64_t start_bytes_;
  std::uint64_t scrub_every_;
  bool made_together_;
  bool told_armed_;
  int rank_;
  HostMap hosts_;
  bool is_grouped_;  // memory is mapped inside of each host, and not between them
  std::vector<SegmentLayout> layouts_;
  std::vector<Slot> slots_;
  std::vector<PrivateArea> areas_;  // as many as slots
  PrivateRows scratch_;             // [kMaxLanes] rows of a token, out of their blocks
  std::size_t scratch_bytes_ = 0;
  PrivateRows host_sums_;                 // [kMaxLanes x hosts] rows of a token
  std::vector<PrivateArea*> free_areas_;  // the last one given back is the first to be taken
  std::array<const std::byte*, kMaxSlots> mapped_views_ = {};  // all ranks' x of a slot
  std::vector<std::unique_ptr<Op>> ops_;                       // in no order; `order_` is
  std::vector<Op*> order_;                                     // started, oldest first
  std::uint64_t first_;                                        // EngineOptions::epoch
  std::uint64_t seq_;                                          // last used
  std::uint64_t epoch_;                                        // last used
  bool input_reserved_ = false;
  bool input_in_slot_ = false;
  const void* input_data_ = nullptr;
  PrivateArea* input_area_ = nullptr;  // where input_data_ is, when far
  RankSet lost_;                       // ranks that died, left or failed
  RankSet reported_;                   // those that an operation has returned peer_lost for
  std::vector<const char*> how_lost_;
  Status failed_;  // mismatch or corrupt: the end of this communicator
  bool told_failure_ = false;
  bool closed_ = false;
  mutable LaneWord control_{1};

  int lanes_ = 1;
  SendOrder send_order_ = SendOrder::scheduled;
  Roles wanted_roles_;
  Roles roles_{.count = 1};
  Tracer* tracer_ = nullptr;
  int control_lane_ = 0;
  int fruitless_ = 0;  // looks at the peers in a row
  LaneWord awaited_;   // packed by note_awaited()
};

template <Fabric F>
EngineImpl<F>::EngineImpl(F& fabric, const EngineOptions& options)
    : fabric_(fabric),
      config_(options.config),
      protocol_(find_protocol(config_.protocol)),
      decodes_(config_.push && protocol_.decodes()),
      arms_(config_.push && protocol_.arms()),
      is_acknowledged_(protocol_.arrival() == RowProtocol::Arrival::acknowledged),
      store_(options.store),
      most_counts_(options.most_counts),
      tile_bytes_(options.tile_bytes),
      start_bytes_(options.start_bytes),
      scrub_every_(options.scrub_every),
      made_together_(options.made_together),
      told_armed_(options.made_together),
      rank_(fabric.rank()),
      hosts_(fabric.facts().hosts.empty() ? HostMap(config_.size) : fabric.facts().hosts),
      is_grouped_(!fabric.facts().hosts.empty()),
      slots_(static_cast<std::size_t>(config_.slots)),
      first_(options.epoch),
      seq_(options.epoch),
      epoch_(options.epoch),
      lost_(config_.size),
      reported_(config_.size),
      how_lost_(static_cast<std::size_t>(config_.size)) {
  if (config_.size > kMostRanks) broken_invariant("more ranks than an engine takes");
  layouts_.reserve(static_cast<std::size_t>(config_.size));
  for (int r = 0; r < config_.size; ++r) layouts_.emplace_back(config_, r);
  areas_.resize(slots_.size());
  free_areas_.reserve(slots_.size());
  for (PrivateArea& area : areas_) {
    area.x = PrivateRows(own().x_area_bytes());
    area.rows = PrivateRows(own().y_area_bytes());
    area.y = PrivateRows(own().y_area_bytes());
    free_areas_.push_back(&area);
  }
  for (int i = 0; i < 2 * config_.slots; ++i) ops_.push_back(std::make_unique<Op>(config_.size));
  for (int r : options.absent) {
    lost_.insert(r);
    reported_.insert(r);
    how_lost_[static_cast<std::size_t>(r)] = "absent";
  }
  if (config_.push) begin_windows(options.epoch);
  if (is_grouped_) {
    host_sums_ =
        PrivateRows(kMaxLanes * static_cast<std::size_t>(hosts_.num_hosts()) * config_.max_stride,
                    PrivateRows::Use::sparse);
  }
}

// One is free when a slot is. That of the last lease is most likely still in the caches: with one
// dispatch at a time it is always the same.
template <Fabric F>
PrivateArea* EngineImpl<F>::take_area() {
  PrivateArea* area = free_areas_.back();
  free_areas_.pop_back();
  return area;
}

template <Fabric F>
void EngineImpl<F>::end_lease(HandleState& h) {
  Slot& slot = slot_of(h);
  free_areas_.push_back(slot.area);
  slot.area = nullptr;
  h.leased = slot.leased = slot.combining = false;
}

template <Fabric F>
Op* EngineImpl<F>::find(const HandleState& handle) const {
  return handle.op != nullptr && handle.op->handle == &handle ? handle.op : nullptr;
}

// A free place exists: at most one operation per lease is pending.
template <Fabric F>
Op& EngineImpl<F>::free_op() {
  for (const auto& op : ops_) {
    if (op->line.kind != OpKind::none) continue;
    op->cached = op->encoding = op->announced = op->sent = op->placed = op->by_expert = false;
    for (RankSet* set : {&op->absent, &op->unplaced, &op->pushers, &op->coming, &op->unsent,
                         &op->decoding, &op->targets, &op->copying, &op->early}) {
      set->clear();
    }
    if (config_.relay) {
      for (RankSet* set : {&op->relaying, &op->summing, &op->helpers}) set->clear();
      op->relay.clear();
    }
    op->status = {};
    std::fill(op->stage.begin(), op->stage.end(), Op::kOpLine);
    if (arms_) {
      for (auto& marks : op->marks) marks.clear();
    }
    op->shares = 1;
    op->tell_shares = 0;
    op->recalled = op->serial = false;
    op->tell.clear();
    op->count.clear();
    op->send.clear();
    op->receive.clear();
    op->copied.store_release(0);                // publishes: nothing; no tile is out yet
    op->unpublished.store_release(0);           // publishes: nothing; likewise
    op->lost.store_release(op->absent);         // publishes: nothing, the set is empty; likewise
    op->ready.store_release(op->absent);        // publishes: nothing; likewise
    op->early_ready.store_release(op->absent);  // publishes: nothing; likewise
    return *op;
  }
  broken_invariant("more operations pending than leases");
}

// One lane at a time advances operations.
template <Fabric F>
int EngineImpl<F>::control(int lane) {
  if (!control_.try_claim(1, 0)) return 0;  // claims: the operations' state
  control_lane_ = lane;
  int done = fabric_.progress();
  for (std::size_t i = 0; i < order_.size();) {
    Op* op = order_[i];
    done += advance(*op);
    if (i < order_.size() && order_[i] == op) ++i;  // else it finished and left the list
  }
  if (!failed_.ok()) done += retire_all(failed_);
  note_awaited(done);
  control_.store_release(1);  // publishes: the operations' state, to the next lane in control
  if (done != 0) charge(lane, Activity::count);
  return done;
}

// Any lane. The kind is read after a tile was claimed: add() published it.
template <Fabric F>
int EngineImpl<F>::run_send_tiles(Op& op) {
  return op.send.run([&](Tile& tile) {
    if (op.line.kind == OpKind::combine) return send_outputs(op, tile);
    if (op.encoding) return encode_tokens(op, tile);
    if (relays(*op.handle->routed)) return relay_rows(op, tile);
    return pushes(*op.handle->routed) ? push_rows(op, tile) : send_tokens(op, tile);
  });
}

template <Fabric F>
int EngineImpl<F>::run_receive_tiles(Op& op, int lane) {
  return op.receive.run([&](Tile& tile) {
    if (op.line.kind == OpKind::dispatch) return pull_rows(op, tile);
    return op.line.reduction == Reduction::per_host ? reduce_by_host(op, tile, lane)
                                                    : reduce_tokens(op, tile, lane);
  });
}

template <Fabric F>
int EngineImpl<F>::advance(Op& op) {
  if (!failed_.ok()) return 0;  // step() retires it
  return op.line.kind == OpKind::dispatch ? advance_dispatch(op) : advance_combine(op);
}

template <Fabric F>
Status EngineImpl<F>::status_of(const Op& op, Code code) const {
  Status status;
  status.code = code;
  status.kind = op.line.kind;
  status.rank = static_cast<std::int16_t>(rank_);
  status.epoch = op.line.epoch;
  return status;
}

template <Fabric F>
Status EngineImpl<F>::not_ready(OpKind kind, const char* what) const {
  Status status;
  status.code = Code::not_ready;
  status.kind = kind;
  status.rank = static_cast<std::int16_t>(rank_);
  status.epoch = epoch_;
  status.what = what;
  return status;
}

}  // namespace ubep

#include "engine/agree_impl.hpp"     // IWYU pragma: export
#include "engine/combine_impl.hpp"   // IWYU pragma: export
#include "engine/dispatch_impl.hpp"  // IWYU pragma: export
#include "engine/end_impl.hpp"       // IWYU pragma: export
#include "engine/place_impl.hpp"     // IWYU pragma: export
#include "engine/push_impl.hpp"      // IWYU pragma: export
#include "engine/relay_impl.hpp"     // IWYU pragma: export
#include "engine/roles_impl.hpp"     // IWYU pragma: export
#include "engine/slices_impl.hpp"    // IWYU pragma: export
#include "engine/wire_impl.hpp"      // IWYU pragma: export
