#include "sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/invariant.hpp"

namespace ubep::sim {
namespace {

// Tokens of a lane.
constexpr std::uint64_t kResume = 0;
constexpr std::uint64_t kLanded = 1;  // | put << 2
constexpr std::uint64_t kReadOver = 2;
constexpr std::uint64_t kTimer = 3;  // | wait << 2
constexpr std::uint64_t kKind = 3;

}  // namespace

struct World::Lane final : Agent {
  Lane(World& w, int r, std::function<void()> body) : world(w), rank(r), fiber(std::move(body)) {}
  void on_event(std::uint64_t token) override;

  World& world;
  int rank;
  int number = 0;  // among the lanes of its rank
  Fiber fiber;
  std::vector<Loose> loose;
  std::uint64_t under_way = 0;  // bytes
  int rows = 0;                 // under way
  enum class Blocked : std::uint8_t { no, by_bytes, by_rows };
  Blocked blocked = Blocked::no;  // until a put has landed
  bool waiting = false;           // for news
  std::uint64_t waits = 0;
  bool unwinding = false;
};

World::World(const WorldOptions& options)
    : options_(options),
      random_(options.seed),
      links_(queue_, options_.pod, options.ranks, options.lanes),
      memory_(queue_, options.memory, [this](int rank, Time at) { queue_.at(at, node(rank), 0); }),
      nodes_(static_cast<std::size_t>(options.ranks)) {
  memory_.set_way_back([this](int from, int to) { return options_.pod.tier(from, to).latency; });
  for (int r = 0; r < options.ranks; ++r) {
    node(r).world = this;
    node(r).rank = r;
    fabrics_.push_back(std::make_unique<SimFabric>(*this, r));
  }
}

World::~World() { end(); }

void World::end() {
  ending_ = true;
  for (const auto& lane : lanes_) {
    while (lane->fiber.started() && !lane->fiber.ended()) {
      try {
        resume(*lane);
      } catch (...) {  // it was told to end, and the world has an error already, or no reader
      }
    }
  }
}

void World::start(int rank, std::function<void()> body, Time time) {
  auto lane = std::make_unique<Lane>(*this, rank, [body = std::move(body)] {
    try {
      body();
    } catch (const LaneEnds&) {
      return;
    }
  });
  lane->number = static_cast<int>(node(rank).lanes.size());
  if (lane->number >= options_.lanes) broken_invariant("more lanes than the world was made for");
  node(rank).lanes.push_back(lane.get());
  ++live_lanes_;
  queue_.at(time, *lane, kResume);
  lanes_.push_back(std::move(lane));
}

bool World::run(Time limit) {
  limit_ = limit;
  while (live_lanes_ != 0 && queue_.next() <= limit && queue_.run_next()) {
  }
  return live_lanes_ == 0;
}

void World::Lane::on_event(std::uint64_t token) {
  switch (token & kKind) {
    case kLanded: {
      const std::uint64_t put = token >> 2;
      const Load load = world.loads_[put];
      under_way -= load.bytes;
      if (load.is_row) --rows;
      world.memory_.land(put);
      const LaneCosts& costs = world.options_.pod.lane;
      if ((blocked == Blocked::by_bytes && under_way <= costs.window) ||
          (blocked == Blocked::by_rows && rows < costs.in_flight)) {
        blocked = Blocked::no;
        world.resume(*this);
      }
      return;
    }
    case kTimer:
      if (!waiting || token >> 2 != waits) return;
      std::erase(world.node(rank).waiting, this);
      waiting = false;
      break;
    default:
      break;
  }
  world.resume(*this);
}

void World::resume(Lane& lane) {
  if (lane.fiber.ended()) return;
  const Time stalled = node(lane.rank).stalled_until;
  if (!ending_ && stalled > queue_.now()) {
    queue_.at(stalled, lane, kResume);
    return;
  }
  Lane* before = std::exchange(running_, &lane);
  try {
    if (lane.fiber.started() || !node(lane.rank).dead) lane.fiber.resume();
  } catch (...) {
    running_ = before;
    --live_lanes_;
    throw;
  }
  running_ = before;
  if (lane.fiber.ended() || !lane.fiber.started()) --live_lanes_;
}

void World::suspend(Lane& lane) {
  Fiber::suspend();
  if (!ending_ && !node(lane.rank).dead) return;
  lane.unwinding = true;
  throw LaneEnds{};
}

// Returns how much longer this call takes.
Time World::meet_fate(Node& n, bool at_put) {
  const std::uint64_t number = at_put ? ++n.puts : ++n.calls;
  Time late = 0;
  for (const Fate& fate : options_.fates) {
    if (fate.rank != n.rank || fate.at_put != at_put || fate.call != number) continue;
    if (fate.dies) {
      kill(n.rank);
    } else if (fate.one_lane) {
      late = fate.stall;
      note(n.rank, fmt::format("this lane stands still for {} ns", late / kNanosecond));
    } else {
      stall(n.rank, now() + fate.stall);
    }
  }
  return late;
}

// Most calls take a little longer, a few much.
Time World::hesitate() {
  const Time most = options_.hesitation;
  return most == 0 ? 0 : random_.up_to(random_.one_in(64) ? 16 * most : most);
}

void World::spend(Time cost) {
  if (running_ != nullptr && !running_->unwinding) {
    cost += meet_fate(node(running_->rank), false);
    if (node(running_->rank).dead) {
      running_->unwinding = true;
      throw LaneEnds{};
    }
  }
  if (cost == 0 && options_.hesitation == 0) return;
  const Time until = queue_.now() + cost + hesitate();
  Lane* lane = running_;
  if (lane == nullptr) {
    limit_ = until;
    while (queue_.next() <= until) (void)queue_.run_next();
    (void)queue_.skip_to(until);
    return;
  }
  if (lane->unwinding) return;
  const bool goes_on = until <= limit_ && node(lane->rank).stalled_until <= until;
  if (goes_on && queue_.skip_to(until)) return;
  queue_.at(until, *lane, kResume);
  suspend(*lane);
}

void World::wait_for_news(int rank, std::uint64_t before, Time until) {
  Node& n = node(rank);
  Lane& lane = *running_;
  if (n.news != before || lane.unwinding) return;
  lane.waiting = true;
  ++lane.waits;
  n.waiting.push_back(&lane);
  if (until != kNever) queue_.at(until, lane, lane.waits << 2 | kTimer);
  suspend(lane);
}

void World::Node::on_event(std::uint64_t) {
  ++news;
  world->wake(*this, false);
}

void World::stir(int rank) {
  ++node(rank).news;
  wake(node(rank), true);
}

// One lane is enough to look at what has arrived: it stirs the others when there is work.
void World::wake(Node& n, bool all) {
  while (!n.waiting.empty()) {
    const auto lane = std::min_element(n.waiting.begin(), n.waiting.end(),
                                       [](Lane* a, Lane* b) { return a->number < b->number; });
    Lane* first = *lane;
    n.waiting.erase(lane);
    first->waiting = false;
    queue_.at(queue_.now(), *first, kResume);
    if (!all) return;
  }
}

void World::kill(int rank) {
  Node& n = node(rank);
  if (n.dead) return;
  n.dead = true;
  note(rank, "dies");
  wake(n, true);
  for (Lane* lane : n.lanes) {
    if (std::exchange(lane->blocked, Lane::Blocked::no) != Lane::Blocked::no) {
      queue_.at(queue_.now(), *lane, kResume);
    }
  }
}

void World::stall(int rank, Time until) {
  node(rank).stalled_until = std::max(node(rank).stalled_until, until);
  note(rank, fmt::format("stands still for {} ns", (until - now()) / kNanosecond));
}

Time World::latency(int from, int to) {
  return options_.pod.tier(from, to).latency + random_.up_to(options_.pod.jitter);
}

void World::await_room() {
  const int most = options_.pod.lane.in_flight;
  if (running_ == nullptr || most == 0) return;
  Lane& lane = *running_;
  if (lane.rows < most || lane.unwinding) return;
  lane.blocked = Lane::Blocked::by_rows;
  suspend(lane);
}

void World::send_put(int from, const Parcel& parcel) {
  const LaneCosts& costs = options_.pod.lane;
  if (running_ == nullptr) {
    spend(latency(from, parcel.to));
    memory_.land(parcel.put);
    return;
  }
  Lane& lane = *running_;
  if (loads_.size() <= parcel.put) loads_.resize(parcel.put + 1);
  loads_[parcel.put] = {parcel.bytes, parcel.is_row};
  lane.under_way += parcel.bytes;
  if (parcel.is_row) ++lane.rows;
  const std::uint64_t token = parcel.put << 2 | kLanded;
  if (options_.has_links) {
    links_.send({.from = from,
                 .lane = lane.number,
                 .to = parcel.to,
                 .bytes = parcel.bytes,
                 .extra = random_.up_to(options_.pod.jitter),
                 .agent = &lane,
                 .token = token});
  } else {
    queue_.at(queue_.now() + latency(from, parcel.to), lane, token);
  }
  spend(parcel.issue + time_of(parcel.bytes, parcel.rate) + meet_fate(node(from), true));
  if (costs.window == 0 || lane.under_way <= costs.window || lane.unwinding) return;
  lane.blocked = Lane::Blocked::by_bytes;
  suspend(lane);
}

void World::start_fetch(int rank, int peer, std::uint64_t bytes, std::uint64_t number) {
  const Time way = 2 * latency(rank, peer);
  const Time late = options_.memory.weak ? random_.up_to(options_.memory.delay) : 0;
  if (!options_.has_links || bytes == 0) {
    queue_.at(queue_.now() + way + late + time_of(bytes, options_.pod.port), fabric(rank), number);
    return;
  }
  links_.send({.from = peer,
               .lane = 0,
               .to = rank,
               .bytes = bytes,
               .extra = way / 2 + late,  // the request's way; the bytes take theirs in the links
               .agent = &fabric(rank),
               .token = number});
}

void World::read(int rank, int peer, std::uint64_t bytes) {
  Lane* lane = running_;
  if (!options_.has_links || lane == nullptr) {
    spend(2 * latency(rank, peer) + time_of(bytes, options_.pod.port));
    return;
  }
  if (lane->unwinding) return;
  links_.send({.from = peer,
               .lane = lane->number,
               .to = rank,
               .bytes = bytes,
               .extra = latency(rank, peer),
               .agent = lane,
               .token = kReadOver});
  suspend(*lane);
}

std::vector<Loose>& World::loose() {
  return running_ != nullptr ? running_->loose : loose_outside_;
}

void World::note(int rank, const std::string& text) {
  if (!keeps_transcript()) return;
  const Lane* lane = running_;
  transcript_.push_back(fmt::format(
      "{:>9}.{:03} {}.{} {}", now() / kNanosecond, now() % kNanosecond, rank,
      lane != nullptr && lane->rank == rank ? std::to_string(lane->number) : "-", text));
}

}  // namespace ubep::sim
