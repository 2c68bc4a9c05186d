#include "sim/layer_run.hpp"

#include <fmt/format.h>

#include <algorithm>
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

GroupConfig make_group(const LayerOptions& o) {
  GroupConfig config;
  config.size = o.ranks;
  config.max_tokens = o.tokens;
  config.max_topk = o.topk;
  config.max_row_bytes = index(o.hidden) * size_of(o.dtype);
  config.max_stride = round_up(config.max_row_bytes, kLineBytes);
  config.push = o.path == Path::push || o.path == Path::bsp;
  config.bsp = o.path == Path::bsp;
  config.protocol = find_protocol(o.protocol).id();
  config.checksum_rows = o.checksum_rows;
  config.experts = ExpertMap(block_map(o.experts, o.ranks), o.ranks);
  return config;
}

WorldOptions make_world(const LayerOptions& o, const GroupConfig& config) {
  WorldOptions world{.pod = o.pod, .ranks = o.ranks, .lanes = o.lanes, .seed = o.seed};
  world.mapped = o.path == Path::read;
  world.memory.moves_rows = o.moves_rows;
  const RowProtocol::Arrival arrival = find_protocol(o.protocol).arrival();
  world.memory.tells_puts = arrival == RowProtocol::Arrival::decoded;
  world.memory.tells_acks = arrival == RowProtocol::Arrival::acknowledged;
  for (int r = 0; r < o.ranks; ++r) {
    world.memory.segment_bytes.push_back(SegmentLayout(config, r).bytes());
    if (config.push) world.memory.inbox_bytes.push_back(SegmentLayout(config, r).inbox_bytes());
  }
  return world;
}

class LayerRank {
 public:
  LayerRank(const LayerOptions& o, const GroupConfig& config, World& world, int rank)
      : options_(o),
        world_(world),
        rank_(rank),
        layout_(config, rank),
        engine_(make_sim_engine(world.fabric(rank),
                                {.config = config, .store = Store::far, .made_together = true})),
        crew_(world, rank, *engine_) {
    bytes_ = index(o.tokens) * index(o.hidden) * size_of(o.dtype);
    x_ = PrivateRows(std::max<std::size_t>(bytes_, 1));
    out_ = PrivateRows(std::max<std::size_t>(bytes_, 1));
    Random random(o.seed * 1000 + static_cast<std::uint64_t>(rank));
    // Exponents stay far from those of infinities and NaNs.
    for (std::size_t i = 0; o.moves_rows && i < bytes_; ++i) {
      x_.data()[i] = static_cast<std::byte>(random.next() & 0x3f);
    }
    route();
  }

  void live() {
    x_rows_ = {x_.data(), options_.tokens, options_.hidden, options_.dtype};
    const RoutingView routing{.topk_idx = ids_,
                              .topk_weights = weights_,
                              .num_tokens = static_cast<std::uint32_t>(options_.tokens),
                              .topk = options_.topk};
    const bool by_expert = options_.layout != Layout::rank_major;
    crew_.call_in();
    must(engine_->start_dispatch(x_rows_, routing,
                                 {.layout = options_.layout,
                                  .path = options_.path,
                                  .reduction = by_expert ? Reduction::exact : Reduction::per_rank},
                                 handle_));
    complete();
    times_.dispatch = world_.now();
    read_rows();
    times_.first_read = world_.now();
    crew_.call_in();
    must(engine_->start_combine(
        handle_, {.out = {out_.data(), options_.tokens, options_.hidden, options_.dtype}}));
    complete();
    times_.combine = world_.now();
    crew_.end();
  }

  void help(int lane) { crew_.help(lane); }
  const RankTimes& times() const { return times_; }
  std::string state() const { return engine_->waits_for(handle_).message(); }

  // Experts return what they get, and one choice of each token has weight 1.
  std::int64_t wrong_rows() const {
    const std::size_t row = index(options_.hidden) * size_of(options_.dtype);
    std::int64_t wrong = 0;
    for (std::size_t t = 0; t < bytes_ / row; ++t) {
      if (std::memcmp(x_.data() + t * row, out_.data() + t * row, row) != 0) ++wrong;
    }
    return wrong;
  }

 private:
  static void must(const Status& status) {
    if (!status.ok()) throw Error(ErrorCode::setup, "simulated layer: " + status.message());
  }

  void route() {
    Random random(options_.seed * 1'000'003 + static_cast<std::uint64_t>(rank_));
    ids_.reserve(index(options_.tokens) * index(options_.topk));
    for (int t = 0; t < options_.tokens; ++t) {
      const auto begin = static_cast<std::ptrdiff_t>(ids_.size());
      for (int k = 0; k < options_.topk;) {
        const auto id =
            static_cast<std::int32_t>(random.next() % static_cast<std::uint64_t>(options_.experts));
        if (std::find(ids_.begin() + begin, ids_.end(), id) != ids_.end()) continue;
        ids_.push_back(id);
        weights_.push_back(k == t % options_.topk ? 1.0F : 0.0F);
        ++k;
      }
    }
  }

  // Steps until the pending operation is complete.
  void complete() {
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
  }

  // What experts do first with received rows; and, where rows move, all that they do.
  void read_rows() {
    const Received& received = handle_.received;
    const std::uint64_t bytes = index(options_.hidden) * size_of(options_.dtype);
    if (options_.path == Path::read) {
      for (int q = 0; q < options_.ranks; ++q) {
        const std::uint64_t rows = handle_.routed->receive.sources[index(q)].num_rows();
        if (q == rank_ || rows == 0) continue;
        (void)world_.fabric(rank_).acquire(
            q, layout_.x(handle_.slot, round_up(bytes, kLineBytes), 0, rows));
      }
    } else {
      world_.fabric(rank_).work(
          {Work::Kind::copy, bytes * static_cast<std::uint64_t>(received.num_rows)});
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
  HandleState handle_;
  std::size_t bytes_ = 0;  // of the own tokens
  PrivateRows x_, out_;
  Rows x_rows_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  RankTimes times_;
};

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

void check(const LayerOptions& o) {
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
}

}  // namespace

LayerResult run_layer(const LayerOptions& options) {
  check(options);
  const GroupConfig config = make_group(options);
  for (int r = 0; r < options.ranks; ++r) {
    if (config.max_rows(r) > 0x7fffffff) {
      fail(fmt::format("tokens x topk x ranks is {} rows on rank {}, expected at most {}",
                       config.max_rows(r), r, 0x7fffffff));
    }
  }
  World world(make_world(options, config));
  std::vector<std::unique_ptr<LayerRank>> ranks;
  const EndOfWorld end_of_world(world);
  for (int r = 0; r < options.ranks; ++r) {
    ranks.push_back(std::make_unique<LayerRank>(options, config, world, r));
    LayerRank& rank = *ranks.back();
    world.start(r, [&rank] { rank.live(); });
    for (int lane = 1; lane < options.lanes; ++lane) {
      world.start(r, [&rank, lane] { rank.help(lane); });
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
