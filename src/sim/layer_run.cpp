#include "sim/layer_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/group_config.hpp"
#include "memory/private_rows.hpp"
#include "protocol/protocols.hpp"
#include "protocol/segment_layout.hpp"
#include "sim/crew.hpp"
#include "sim/engine_sim.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::uint64_t combined_bytes(const LayerOptions& o) { return index(o.hidden) * size_of(o.dtype); }

bool has_records(const LayerOptions& o) { return o.quant != Quant::none || o.record_bytes != 0; }

GroupConfig make_group(const LayerOptions& o) {
  GroupConfig config;
  config.size = o.ranks;
  config.max_tokens = o.tokens;
  config.max_topk = o.topk;
  config.max_row_bytes = std::max(combined_bytes(o), round_up(dispatched_bytes(o), 2));
  config.max_stride = round_up(config.max_row_bytes, kLineBytes);
  config.push = o.path == Path::push || o.path == Path::bsp || o.pod.mapped.has_value();
  config.bsp = o.path == Path::bsp;
  config.returns = o.path == Path::push && !o.pod.mapped;
  config.stage_pushed = o.stage_pushed;
  config.protocol = find_protocol(o.protocol).id();
  config.checksum_rows = o.checksum_rows;
  config.experts = ExpertMap(block_map(o.experts, o.ranks), o.ranks);
  return config;
}

// Lanes load and store themselves: no link carries anything.
void map_memory(const LayerOptions& o, WorldOptions& world) {
  world.has_links = false;
  world.row_bytes = combined_bytes(o);
  if (o.path == Path::bsp) world.pod.combine = o.pod.bsp_combine;
}

WorldOptions make_world(const LayerOptions& o, const GroupConfig& config) {
  WorldOptions world{.pod = o.pod, .ranks = o.ranks, .lanes = o.lanes, .seed = o.seed};
  if (o.path == Path::bsp && o.pod.bsp) world.pod.lane = *o.pod.bsp;
  world.mapped = o.path == Path::read || o.pod.mapped.has_value();
  if (o.pod.mapped) map_memory(o, world);
  world.memory.moves_rows = o.moves_rows;
  const RowProtocol::Arrival arrival = find_protocol(o.protocol).arrival();
  world.memory.tells_puts = arrival == RowProtocol::Arrival::decoded;
  world.memory.tells_acks = arrival == RowProtocol::Arrival::acknowledged;
  world.copies_inbox = o.path == Path::bsp || (o.path == Path::push && o.stage_pushed);
  for (int r = 0; r < o.ranks; ++r) {
    world.memory.segment_bytes.push_back(SegmentLayout(config, r).bytes());
    if (config.push) world.memory.inbox_bytes.push_back(SegmentLayout(config, r).inbox_bytes());
  }
  return world;
}

EngineOptions engine_options(const LayerOptions& o, const GroupConfig& config) {
  EngineOptions options{.config = config, .made_together = true};
  options.store = o.pod.mapped.value_or(Store::far);
  if (!o.pod.mapped) options.tile_bytes = 4096;  // of a vector core, not of a CPU
  return options;
}

// Where all ranks wait for the last one, at no cost.
class Meeting {
 public:
  Meeting(World& world, int ranks) : world_(world), ranks_(ranks) {}

  void wait(int rank) {
    if (++here_ == ranks_) {
      for (int r = 0; r < ranks_; ++r) world_.stir(r);
    }
    for (;;) {
      const std::uint64_t before = world_.news(rank);
      if (here_ >= ranks_) return;
      world_.wait_for_news(rank, before);
    }
  }

 private:
  World& world_;
  int ranks_;
  int here_ = 0;
};

class LayerRank {
 public:
  LayerRank(const LayerOptions& o, const GroupConfig& config, World& world, int rank)
      : options_(o),
        world_(world),
        rank_(rank),
        layout_(config, rank),
        engine_(make_sim_engine(world.fabric(rank), engine_options(o, config))),
        crew_(world, rank, *engine_),
        tracer_(world, rank, o.lanes, o.slices) {
    engine_->set_lanes(o.lanes, o.roles, o.order);
    engine_->set_tracer(&tracer_);
    bytes_ = index(o.tokens) * index(o.hidden) * size_of(o.dtype);
    x_ = PrivateRows(std::max<std::size_t>(bytes_, 1));  // read only where rows move
    out_ = PrivateRows(std::max<std::size_t>(bytes_, 1));
    Random random(o.seed * 1000 + static_cast<std::uint64_t>(rank));
    // Exponents stay far from those of infinities and NaNs.
    for (std::size_t i = 0; o.moves_rows && i < bytes_; ++i) {
      x_.data()[i] = static_cast<std::byte>(random.next() & 0x3f);
    }
    route();
  }

  void live(Meeting& meeting) {
    x_rows_ = token_rows();
    if (has_records(options_)) {
      const auto halves = static_cast<std::int64_t>((dispatched_bytes(options_) + 1) / 2);
      x_rows_ = {x_.data(), options_.tokens, halves, DType::bf16};
    }
    const RoutingView routing{.topk_idx = ids_,
                              .topk_weights = weights_,
                              .num_tokens = static_cast<std::uint32_t>(options_.tokens),
                              .topk = options_.topk};
    const bool by_expert = options_.layout != Layout::rank_major;
    tracer_.begin();
    crew_.call_in();
    launch(world_.options().pod.lane.launch);
    must(engine_->start_dispatch(x_rows_, routing,
                                 {.layout = options_.layout,
                                  .path = options_.path,
                                  .reduction = by_expert ? Reduction::exact : Reduction::per_rank},
                                 handle_));
    times_.dispatch_lanes = complete();
    times_.roles = engine_->roles();
    times_.dispatch = world_.now();
    read_rows();
    times_.first_read = world_.now();
    if (options_.expert_row != 0) {
      world_.spend(options_.expert_row * static_cast<Time>(handle_.received.num_rows));
    }
    if (options_.aligned) meeting.wait(rank_);
    times_.combine_start = world_.now();
    tracer_.begin();
    crew_.call_in();
    if (has_records(options_)) turn_into_tokens();
    world_.fabric(rank_).begin(SimFabric::Part::combine);
    launch(world_.options().pod.lane.combine_launch);
    must(engine_->start_combine(
        handle_, {.out = {out_.data(), options_.tokens, options_.hidden, options_.dtype}}));
    times_.combine_lanes = complete();
    times_.combine = world_.now();
    times_.dispatch_copied = handle_.stats.dispatch_copied_bytes;
    times_.combine_copied = handle_.stats.combine_copied_bytes;
    times_.rows = static_cast<std::uint64_t>(handle_.received.num_rows);
    crew_.end();
  }

  void help(int lane) { crew_.help(lane); }
  const RankTimes& times() const { return times_; }
  std::string state() const { return engine_->waits_for(&handle_).message(); }

  // Experts return what they get, and one choice of each token has weight 1; if it has any.
  std::int64_t wrong_rows() const {
    const std::size_t row = index(options_.hidden) * size_of(options_.dtype);
    std::int64_t wrong = 0;
    const std::vector<std::byte> zeros(row);
    for (std::size_t t = 0; t < bytes_ / row; ++t) {
      const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(t * index(options_.topk));
      const bool routed =
          std::any_of(first, first + options_.topk, [](auto id) { return id >= 0; });
      const std::byte* want = routed ? x_.data() + t * row : zeros.data();
      if (std::memcmp(want, out_.data() + t * row, row) != 0) ++wrong;
    }
    return wrong;
  }

 private:
  Rows token_rows() const {
    return {const_cast<std::byte*>(x_.data()), options_.tokens, options_.hidden, options_.dtype};
  }

  // What comes back of dispatched records is as large as the tokens.
  void turn_into_tokens() {
    handle_.hidden = options_.hidden;
    handle_.dtype = options_.dtype;
    handle_.x = token_rows();
    handle_.output.hidden = options_.hidden;
    handle_.output.dtype = options_.dtype;
    handle_.output.stride_bytes =
        static_cast<std::int64_t>(round_up(combined_bytes(options_), kLineBytes));
  }

  void launch(Time time) {
    if (time != 0) world_.spend(time);
  }

  static void must(const Status& status) {
    if (!status.ok()) throw Error(ErrorCode::setup, "simulated layer: " + status.message());
  }

  void route() {
    Random random(options_.seed * 1'000'003 + static_cast<std::uint64_t>(rank_));
    if (!options_.topk_idx.empty()) ids_ = options_.topk_idx[index(rank_)];
    for (int t = 0; t < options_.tokens; ++t) {
      if (options_.topk_idx.empty()) draw(random);
      weigh(t);
    }
  }

  // Different experts for a token.
  void draw(Random& random) {
    const auto begin = static_cast<std::ptrdiff_t>(ids_.size());
    while (ids_.size() < index(begin) + index(options_.topk)) {
      const auto id =
          static_cast<std::int32_t>(random.next() % static_cast<std::uint64_t>(options_.experts));
      if (std::find(ids_.begin() + begin, ids_.end(), id) == ids_.end()) ids_.push_back(id);
    }
  }

  // All of a token's weight goes to one of its experts.
  void weigh(int token) {
    const std::size_t topk = index(options_.topk);
    const std::size_t first = weights_.size();
    weights_.resize(first + topk);
    for (std::size_t i = 0; i < topk; ++i) {
      const std::size_t k = (index(token) + i) % topk;
      if (ids_[first + k] < 0) continue;
      weights_[first + k] = 1.0F;
      return;
    }
  }

  // Steps until the pending operation is complete.
  std::vector<LaneTimes> complete() {
    crew_.let_out();
    for (;;) {
      const std::uint64_t before = world_.news(rank_);
      const int done = engine_->step(0, options_.lanes);
      // acquires: the operation's results; lanes of one thread.
      if (handle_.state.load_acquire() == HandleState::complete) break;
      if (done != 0) {
        world_.stir(rank_);
      } else {
        world_.wait_for_news(rank_, before);
      }
    }
    crew_.call_in();
    must(handle_.status);
    return tracer_.end();
  }

  // What experts do first with received rows; and, where rows move, all that they do.
  void read_rows() {
    const Received& received = handle_.received;
    const std::uint64_t bytes = index(x_rows_.row_bytes());
    if (options_.path == Path::read) {
      for (int q = 0; q < options_.ranks; ++q) {
        const std::uint64_t rows = handle_.routed->receive.sources[index(q)].num_rows();
        if (q == rank_ || rows == 0) continue;
        (void)world_.fabric(rank_).acquire(
            q, layout_.x(handle_.slot, round_up(bytes, kLineBytes), 0, rows));
      }
    } else {
      world_.fabric(rank_).work(
          {Work::Kind::copy, bytes * static_cast<std::uint64_t>(received.num_rows) /
                                 static_cast<std::uint64_t>(options_.lanes)});
    }
    if (!options_.moves_rows) return;
    for (std::int64_t i = 0; i < received.num_rows; ++i) {
      const std::byte* from = received.row_table.empty() ? received.base + i * received.stride_bytes
                                                         : received.row_table[index(i)];
      auto* to = static_cast<std::byte*>(handle_.output.data) + i * handle_.output.stride_bytes;
      std::memcpy(to, from, bytes);
      if (options_.layout != Layout::rank_major) continue;
      // Weighting is the kernel's: here a row counts if the choice with weight 1 came with it.
      float weight = 0;
      for (int k = 0; k < options_.topk; ++k) {
        weight += received.topk_weights[index(i) * index(options_.topk) + index(k)];
      }
      if (weight == 0) std::memset(to, 0, bytes);
    }
  }

  const LayerOptions& options_;
  World& world_;
  int rank_;
  SegmentLayout layout_;
  std::shared_ptr<Engine> engine_;
  Crew crew_;
  LaneTracer tracer_;
  HandleState handle_;
  std::size_t bytes_ = 0;  // of the own tokens
  PrivateRows x_, out_;
  Rows x_rows_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  RankTimes times_;
};

// Of this mean, at most 10 times it.
Time exponential(Random& random, Time mean) {
  const double unit = static_cast<double>(random.next() >> 11U) * 0x1p-53;
  return static_cast<Time>(std::min(-std::log1p(-unit), 10.0) * static_cast<double>(mean));
}

// Lanes that are still within an engine leave it before it goes.
class EndOfWorld {
 public:
  explicit EndOfWorld(World& world) : world_(world) {}
  ~EndOfWorld() { world_.end(); }
  EndOfWorld(const EndOfWorld&) = delete;
  EndOfWorld& operator=(const EndOfWorld&) = delete;

 private:
  World& world_;
};

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::invalid_argument, text); }

void check_range(const char* option, int value, int low, int high) {
  if (value < low || value > high) {
    fail(fmt::format("{} is {}, expected {} to {}", option, value, low, high));
  }
}

void check_path(const LayerOptions& o) {
  const bool by_token = o.path == Path::read || o.path == Path::allgather;
  if (o.path == Path::automatic) fail("path is automatic, expected one that is named");
  if (o.layout == Layout::expert_padded) fail("layout is expert_padded, expected another one");
  const Layout layout = by_token ? Layout::rank_major : Layout::expert_major;
  if ((by_token || o.path == Path::bsp) && o.layout != layout) {
    fail(fmt::format("layout is {}, path {} needs {}", name(o.layout), name(o.path), name(layout)));
  }
  if (o.protocol != Protocol::automatic && o.path != Path::push) {
    fail(fmt::format("protocol is {}, path {} has none", name(o.protocol), name(o.path)));
  }
  if (o.checksum_rows != 0 && o.protocol != Protocol::checksum) {
    fail(fmt::format("checksum_rows is {}, protocol {} has none", o.checksum_rows,
                     name(o.protocol)));
  }
}

void check_rates(const LayerOptions& o) {
  if (o.pod.background >= o.pod.port) {
    fail(fmt::format("background is {} GB/s, ports of the pod {} have {}",
                     static_cast<double>(o.pod.background) * 1e-9, o.pod.name,
                     static_cast<double>(o.pod.port) * 1e-9));
  }
  if (o.pod.mapped && (o.pod.background != 0 || !o.pod.degraded.empty())) {
    fail(fmt::format("the pod {} is mapped: it has no links that could be slower", o.pod.name));
  }
  for (const Degraded& d : o.pod.degraded) {
    check_range("degraded rank", d.rank, 0, o.ranks - 1);
    if (d.to != -1) check_range("degraded rank", d.to, 0, o.ranks - 1);
    if (d.to == d.rank) fail(fmt::format("degraded link is from {} to itself", d.rank));
    if (!(d.factor > 0 && d.factor < 1)) {
      fail(fmt::format("degraded factor is {}, expected above 0 and below 1", d.factor));
    }
  }
}

void check_records(const LayerOptions& o) {
  check_range("record_bytes", o.record_bytes, 0, 1 << 26);
  if (o.quant != Quant::none && o.record_bytes != 0) {
    fail(fmt::format("record_bytes is {}, quant is {}: expected one of them", o.record_bytes,
                     name(o.quant)));
  }
  if (has_records(o) && o.moves_rows) fail("rows move, so they cannot be records");
}

}  // namespace

std::uint64_t dispatched_bytes(const LayerOptions& o) {
  if (o.record_bytes != 0) return static_cast<std::uint64_t>(o.record_bytes);
  if (o.quant == Quant::none) return combined_bytes(o);
  const bool bare = o.path != Path::push || !find_protocol(o.protocol).decodes();
  return round_up(record_bytes(o.quant, o.hidden), bare ? record_grid(o.quant) : 1);
}

void check_layer(const LayerOptions& o) {
  if (o.ranks < 1 || o.ranks > o.pod.ranks) {
    fail(fmt::format("ranks is {}, the pod {} has {}", o.ranks, o.pod.name, o.pod.ranks));
  }
  check_range("lanes", o.lanes, 1, 64);
  check_range("tokens", o.tokens, 0, 1 << 24);
  check_range("hidden", o.hidden, 1, 1 << 24);
  check_range("experts", o.experts, 1, kMaxExperts);
  if (o.topk < 1 || o.topk > o.experts || o.topk > kMaxTopk) {
    fail(fmt::format("topk is {}, expected 1 to {}", o.topk, std::min(o.experts, kMaxTopk)));
  }
  check_path(o);
  check_rates(o);
  check_records(o);
  if (!o.topk_idx.empty() && o.topk_idx.size() != index(o.ranks)) {
    fail(fmt::format("topk_idx is of {} ranks, expected {}", o.topk_idx.size(), o.ranks));
  }
  for (const auto& ids : o.topk_idx) {
    if (ids.size() != index(o.tokens) * index(o.topk)) {
      fail(fmt::format("topk_idx has {} choices of a rank, expected tokens x topk = {}", ids.size(),
                       index(o.tokens) * index(o.topk)));
    }
    for (const std::int32_t id : ids) check_range("topk_idx", id, -1, o.experts - 1);
  }
  const GroupConfig config = make_group(o);
  for (int r = 0; r < o.ranks; ++r) {
    if (config.max_rows(r) > 0x7fffffff) {
      fail(fmt::format("tokens x topk x ranks is {} rows on rank {}, expected at most {}",
                       config.max_rows(r), r, 0x7fffffff));
    }
  }
}

LayerResult run_layer(const LayerOptions& options) {
  check_layer(options);
  const GroupConfig config = make_group(options);
  World world(make_world(options, config));
  Meeting meeting(world, options.ranks);
  std::vector<std::unique_ptr<LayerRank>> ranks;
  const EndOfWorld end_of_world(world);
  Random arrivals(options.seed * 1'000'033);
  for (int r = 0; r < options.ranks; ++r) {
    ranks.push_back(std::make_unique<LayerRank>(options, config, world, r));
    LayerRank& rank = *ranks.back();
    const Time late = options.arrival == 0 ? 0 : exponential(arrivals, options.arrival);
    world.start(
        r, [&rank, &meeting] { rank.live(meeting); }, late);
    for (int lane = 1; lane < options.lanes; ++lane) {
      world.start(
          r, [&rank, lane] { rank.help(lane); }, late);
    }
  }
  if (!world.run()) {
    std::string text = "simulated layer: ranks wait for ever";
    for (const auto& rank : ranks) text += "\n  " + rank->state();
    throw Error(ErrorCode::setup, text);
  }
  LayerResult result;
  for (const auto& rank : ranks) {
    result.ranks.push_back(rank->times());
    if (options.moves_rows) result.wrong_rows += rank->wrong_rows();
  }
  result.events = world.events();
  result.bytes_sent = world.bytes_sent();
  return result;
}

}  // namespace ubep::sim
