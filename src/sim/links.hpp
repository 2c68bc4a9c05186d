// Links: FIFO servers that pass messages on block by block, taking turns between their flows.
//
// A message goes from its sender's port over the uplinks of the tiers between to its receiver's
// memory. Blocks of one flow keep their order; flows share a server evenly. A flow is a lane at the
// sender's port and a sender everywhere else. Ports and memories take longer for bytes of a tier
// that has a rate of its own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sim/event_queue.hpp"
#include "sim/fifo.hpp"
#include "sim/pod.hpp"

namespace ubep::sim {

class Links {
 public:
  Links(EventQueue& queue, const Pod& pod, int ranks, int lanes);
  ~Links();

  // Sends `bytes` (at least 1) now; when the last block has arrived and `extra` has passed, `agent`
  // gets `token`.
  struct Message {
    int from = 0;
    int lane = 0;
    int to = 0;
    std::uint64_t bytes = 0;
    Time extra = 0;
    Agent* agent = nullptr;
    std::uint64_t token = 0;
  };
  void send(const Message& message);

  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  class Server;
  class Pipe;
  static constexpr std::size_t kMaxHops = 5;
  // What each block needs at each hop lies in two lines of the cache.
  struct alignas(64) Travel {
    std::array<Server*, kMaxHops> route = {};
    std::array<std::uint32_t, kMaxHops> passed = {};  // blocks begun by each server
    std::uint32_t blocks = 0;
    std::uint32_t last_bytes = 0;
    std::uint32_t hops = 0;
    std::uint32_t arrived = 0;
    std::uint32_t flow = 0;  // beyond the sender's port
    Time latency = 0;        // before the last hop
    std::size_t tier = 0;
    Message message;
  };

  void find_route(Travel& travel);
  void add_servers(int rank, int lanes, std::size_t senders);

  EventQueue& queue_;
  const Pod& pod_;
  std::vector<std::unique_ptr<Server>> ports_;                   // [ranks] out
  std::vector<std::unique_ptr<Server>> memories_;                // [ranks] in
  std::vector<std::vector<std::unique_ptr<Server>>> uplinks_;    // [tiers][groups x 2]
  std::map<std::pair<int, int>, std::unique_ptr<Server>> slow_;  // from one rank to another
  std::vector<Travel> travels_;
  std::vector<std::uint32_t> free_;  // of travels_
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace ubep::sim
