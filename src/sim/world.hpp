// A group of ranks in virtual time: their memory, the links between them, and the lanes that run.
//
//   World world({.pod = pod, .ranks = 2, .lanes = 1, .memory = {...}});
//   for (int r = 0; r < 2; ++r) world.start(r, [&, r] { ...engine over world.fabric(r)... });
//   world.run();                     // throws what a lane threw
//
// A lane is a fiber that runs the library's own code. Every call of its fabric takes time, and
// while it takes time other lanes run: so calls of the fabric are the points where lanes can
// interleave. Everything follows from the options: the same world has the same history, event by
// event.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/event_queue.hpp"
#include "sim/fabric.hpp"
#include "sim/fiber.hpp"
#include "sim/links.hpp"
#include "sim/memory.hpp"
#include "sim/pod.hpp"
#include "sim/random.hpp"

namespace ubep::sim {

// What befalls a rank at its n-th call of the fabric; or, with `at_put`, after its n-th put into an
// inbox.
struct Fate {
  int rank = 0;
  std::uint64_t call = 0;
  bool dies = true;
  Time stall = 0;         // else stands still for so long:
  bool one_lane = false;  //   the lane that calls, or all of them
  bool at_put = false;
};

struct WorldOptions {
  Pod pod;
  int ranks = 1;
  int lanes = 1;  // of a rank, at most
  bool mapped = true;
  HostMap hosts;  // not empty: where `mapped` is false, memory is mapped inside of each
  MemoryOptions memory;
  bool has_links = true;  // else messages take the tier's latency, and no room
  Time hesitation = 0;    // each call of a fabric takes up to so much longer
  std::vector<Fate> fates;
  std::uint64_t seed = 1;
  // Words of the transcript; empty = none is kept.
  std::function<std::string(int rank, std::uint64_t offset)> name_word;
  bool copies_inbox = false;    // what a dispatch puts into an inbox is copied out of it
  std::uint64_t row_bytes = 0;  // of a pod's mapped memory: what is read of a peer in one piece
};

// Thrown through a lane whose rank is dead, or whose world ends.
struct LaneEnds {};

class World {
 public:
  explicit World(const WorldOptions& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const WorldOptions& options() const { return options_; }
  SimFabric& fabric(int rank) { return *fabrics_[static_cast<std::size_t>(rank)]; }
  Time now() const { return queue_.now(); }
  std::uint64_t events() const { return queue_.count(); }
  std::uint64_t torn_puts() const { return memory_.torn_puts(); }
  std::uint64_t bytes_sent() const { return links_.bytes_sent(); }
  Random& random() { return random_; }

  // A lane of `rank`, from `time` on.
  void start(int rank, std::function<void()> body, Time time = 0);
  // Until no lane runs any more, or virtual time reaches `limit`. True: all lanes have ended.
  bool run(Time limit = kNever);
  // Ends all lanes where they stand; what they use must still be there. The destructor does it,
  // too.
  void end();
  // Nothing will ever happen again.
  bool is_stuck() const { return queue_.next() == kNever; }

  // Of the running lane, or of whoever drives the world where none runs.
  void spend(Time cost);
  // Waits until the rank has news: something arrived, or stir(). Returns at once when it had some
  // since news() said `before`.
  void wait_for_news(int rank, std::uint64_t before, Time until = kNever);
  std::uint64_t news(int rank) const { return nodes_[static_cast<std::size_t>(rank)].news; }
  void stir(int rank);

  // The rank's lanes end at their next step; what they had stored still arrives.
  void kill(int rank);
  bool is_dead(int rank) const { return nodes_[static_cast<std::size_t>(rank)].dead; }
  // The rank's lanes stand still until then.
  void stall(int rank, Time until);

  // A line of the transcript.
  bool keeps_transcript() const { return static_cast<bool>(options_.name_word); }
  void note(int rank, const std::string& text);
  const std::vector<std::string>& transcript() const { return transcript_; }

 private:
  friend class SimFabric;

  struct Lane;
  struct Node final : Agent {
    void on_event(std::uint64_t token) override;  // something has arrived
    World* world = nullptr;
    int rank = 0;
    std::uint64_t news = 0;
    std::uint64_t calls = 0;
    std::uint64_t puts = 0;
    Time stalled_until = 0;
    bool dead = false;
    std::vector<Lane*> lanes;
    std::vector<Lane*> waiting;
  };

  Node& node(int rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  void resume(Lane& lane);
  void suspend(Lane& lane);
  void wake(Node& node, bool all);
  Time meet_fate(Node& node, bool at_put);
  Time latency(int from, int to);
  std::vector<Loose>& loose();  // of the running lane
  Time hesitate();
  // Waits until the running lane may put another row.
  void await_room();
  // What the running lane sends to a peer, which costs it `issue` and its bytes; waits while too
  // much of it is under way.
  struct Parcel {
    int to = 0;
    std::uint64_t bytes = 0;
    std::uint64_t put = 0;
    Time issue = 0;
    std::uint64_t rate = 0;
    bool is_row = false;
  };
  void send_put(int from, const Parcel& parcel);
  // Bytes of `peer` on their way to `rank`, whose fabric is told when they have arrived.
  void start_fetch(int rank, int peer, std::uint64_t bytes, std::uint64_t number);
  // Waits until `bytes` of `peer` have been read.
  void read(int rank, int peer, std::uint64_t bytes);

  WorldOptions options_;
  EventQueue queue_;
  Random random_;
  Links links_;
  Memory memory_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<SimFabric>> fabrics_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::size_t live_lanes_ = 0;
  Lane* running_ = nullptr;
  std::vector<Loose> loose_outside_;
  struct Load {
    std::uint64_t bytes = 0;
    bool is_row = false;
  };
  std::vector<Load> loads_;  // of puts under way, by their numbers
  bool ending_ = false;
  Time limit_ = kNever;  // of run()
  std::vector<std::string> transcript_;
};

}  // namespace ubep::sim
