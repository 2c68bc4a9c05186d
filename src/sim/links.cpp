#include "sim/links.hpp"

#include <algorithm>
#include <utility>

namespace ubep::sim {

// Blocks between two servers. One latency, so they arrive in the order in which they left: only the
// first of them is in the queue of events.
class Links::Pipe final : public Agent {
 public:
  explicit Pipe(Links& links) : links_(links) {}

  void add(Time at, std::uint32_t travel) {
    if (blocks_.empty()) links_.queue_.at(at, *this, 0);
    blocks_.push({at, travel});
  }
  void on_event(std::uint64_t) override;

 private:
  struct Block {
    Time at;
    std::uint32_t travel;
  };

  Links& links_;
  Fifo<Block> blocks_;
};

class Links::Server final : public Agent {
 public:
  // rates: for bytes of each tier.
  Server(Links& links, std::vector<std::uint64_t> rates, std::size_t flows)
      : links_(links), rates_(std::move(rates)), flows_(flows) {
    for (std::size_t i = 0; i < links.pod_.tiers.size(); ++i) pipes_.emplace_back(links);
    for (const std::uint64_t rate : rates_) block_times_.push_back(time_of(links.pod_.block, rate));
  }
  Server(Links& links, std::uint64_t rate, std::size_t flows)
      : Server(links, std::vector<std::uint64_t>(links.pod_.tiers.size(), rate), flows) {}

  void add(std::uint32_t flow, std::uint32_t travel, std::uint32_t blocks) {
    Flow& f = flows_[flow];
    if (f.blocks.empty() && !(busy_ && flow == served_)) turns_.push(flow);
    if (!f.blocks.empty() && f.blocks.back().travel == travel) {
      f.blocks.back().count += blocks;
    } else {
      f.blocks.push({travel, blocks});
    }
    if (!busy_) serve();
  }

  void on_event(std::uint64_t token) override {
    busy_ = false;
    if (!flows_[served_].blocks.empty()) turns_.push(served_);  // behind all that came meanwhile
    pass_on(static_cast<std::uint32_t>(token));
    if (!turns_.empty()) serve();
  }

 private:
  struct Blocks {
    std::uint32_t travel;
    std::uint32_t count;
  };
  struct Flow {
    Fifo<Blocks> blocks;
  };

  std::size_t hop_of(const Travel& t) const {
    std::size_t hop = 0;
    while (t.route[hop] != this) ++hop;
    return hop;
  }

  void serve() {
    served_ = turns_.front();
    turns_.pop();
    Flow& f = flows_[served_];
    const std::uint32_t travel = f.blocks.front().travel;
    if (--f.blocks.front().count == 0) f.blocks.pop();
    Travel& t = links_.travels_[travel];
    const bool last = ++t.passed[hop_of(t)] == t.blocks;
    busy_ = true;
    const Time time = last ? time_of(t.last_bytes, rates_[t.tier]) : block_times_[t.tier];
    links_.queue_.at(links_.queue_.now() + time, *this, travel);
  }

  void pass_on(std::uint32_t travel) {
    Travel& t = links_.travels_[travel];
    const std::size_t hop = hop_of(t);
    if (hop + 1 == t.hops) {
      if (++t.arrived < t.blocks) return;
      const Message message = t.message;
      links_.free_.push_back(travel);
      links_.queue_.at(links_.queue_.now() + message.extra, *message.agent, message.token);
      return;
    }
    if (hop + 2 < t.hops || t.latency == 0) {
      t.route[hop + 1]->add(t.flow, travel, 1);
    } else {
      pipes_[t.tier].add(links_.queue_.now() + t.latency, travel);
    }
  }

  Links& links_;
  std::vector<std::uint64_t> rates_;
  std::vector<Time> block_times_;  // of a whole block of each tier
  std::vector<Flow> flows_;
  Fifo<std::uint32_t> turns_;  // flows that have blocks here, but for the one that is served
  std::vector<Pipe> pipes_;    // [tiers] to the last servers
  std::uint32_t served_ = 0;   // flow
  bool busy_ = false;
};

void Links::Pipe::on_event(std::uint64_t) {
  const std::uint32_t travel = blocks_.front().travel;
  blocks_.pop();
  if (!blocks_.empty()) links_.queue_.at(blocks_.front().at, *this, 0);
  const Travel& t = links_.travels_[travel];
  t.route[t.hops - 1]->add(t.flow, travel, 1);
}

// Other traffic takes its share of a port's time, whatever the tier; what comes in passes the
// receiver's port, too.
void Links::add_servers(int rank, int lanes, std::size_t senders) {
  double factor = 1;
  for (const Degraded& d : pod_.degraded) {
    if (d.rank == rank && d.to < 0) factor *= d.factor;
  }
  const double port = static_cast<double>(pod_.port);
  const double share = (port - static_cast<double>(pod_.background)) / port;
  std::vector<std::uint64_t> out, in;
  for (const Tier& tier : pod_.tiers) {
    const std::uint64_t whole = tier.rate != 0 ? tier.rate : pod_.port;
    // Not by way of a double where nothing is less than it should be.
    const auto of = [&](double part, std::uint64_t rate) {
      return part == 1 ? rate : static_cast<std::uint64_t>(part * static_cast<double>(rate));
    };
    out.push_back(std::max<std::uint64_t>(of(factor * share, whole), 1));
    in.push_back(std::max<std::uint64_t>(std::min(out.back(), of(factor, pod_.memory)), 1));
  }
  ports_.push_back(std::make_unique<Server>(*this, out, static_cast<std::size_t>(lanes)));
  memories_.push_back(std::make_unique<Server>(*this, in, senders));
}

Links::Links(EventQueue& queue, const Pod& pod, int ranks, int lanes) : queue_(queue), pod_(pod) {
  const auto senders = static_cast<std::size_t>(ranks);
  for (int r = 0; r < ranks; ++r) add_servers(r, lanes, senders);
  for (const Degraded& d : pod.degraded) {
    if (d.to < 0) continue;
    const Tier& tier = pod.tier(d.rank, d.to);
    const auto rate = static_cast<double>(tier.rate != 0 ? tier.rate : pod.port) * d.factor;
    slow_[{d.rank, d.to}] = std::make_unique<Server>(
        *this, std::max<std::uint64_t>(static_cast<std::uint64_t>(rate), 1), senders);
  }
  uplinks_.resize(pod.tiers.size());
  for (std::size_t t = 1; t < pod.tiers.size(); ++t) {
    if (pod.tiers[t].uplink == 0) continue;
    const int groups = (ranks + pod.tiers[t - 1].ranks - 1) / pod.tiers[t - 1].ranks;
    for (int g = 0; g < 2 * groups; ++g) {
      uplinks_[t].push_back(std::make_unique<Server>(*this, pod.tiers[t].uplink, senders));
    }
  }
}

Links::~Links() = default;

void Links::find_route(Travel& travel) {
  const Message& m = travel.message;
  travel.route[travel.hops++] = ports_[static_cast<std::size_t>(m.from)].get();
  const Tier& tier = pod_.tier(m.from, m.to);
  travel.latency = tier.latency;
  const auto t = static_cast<std::size_t>(&tier - pod_.tiers.data());
  travel.tier = t;
  if (!slow_.empty()) {
    const auto slow = slow_.find({m.from, m.to});
    if (slow != slow_.end()) travel.route[travel.hops++] = slow->second.get();
  }
  if (!uplinks_[t].empty()) {
    const int below = pod_.tiers[t - 1].ranks;
    travel.route[travel.hops++] = uplinks_[t][static_cast<std::size_t>(2 * (m.from / below))].get();
    travel.route[travel.hops++] =
        uplinks_[t][static_cast<std::size_t>(2 * (m.to / below) + 1)].get();
  }
  travel.route[travel.hops++] = memories_[static_cast<std::size_t>(m.to)].get();
}

void Links::send(const Message& message) {
  std::uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<std::uint32_t>(travels_.size());
    travels_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Travel& t = travels_[index];
  t = {};
  t.message = message;
  t.flow = static_cast<std::uint32_t>(message.from);
  t.blocks = static_cast<std::uint32_t>((message.bytes + pod_.block - 1) / pod_.block);
  t.last_bytes =
      static_cast<std::uint32_t>(message.bytes - std::uint64_t{t.blocks - 1} * pod_.block);
  bytes_sent_ += message.bytes;
  find_route(t);
  t.route[0]->add(static_cast<std::uint32_t>(message.lane), index, t.blocks);
}

}  // namespace ubep::sim
