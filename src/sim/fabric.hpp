// The simulated fabric of one rank (src/fabric/concept.hpp): its calls take virtual time.
//
// Mapped: acquire() waits, in virtual time, until the bytes have been read. Otherwise it starts a
// fetch, as a fabric without mapped memory does; bytes are copies that cannot be touched after
// release(). On a pod whose memory is mapped it takes what reading the bytes takes longer than
// reading own ones. A call that no correct engine makes ends the process: bytes outside the memory,
// a flag that does not grow, a release of what was not acquired, and in weak memory a commit of
// what was not claimed since the last one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fabric_facts.hpp"
#include "sim/event_queue.hpp"
#include "sim/guarded_copies.hpp"

namespace ubep::sim {

class World;
struct LaneCosts;

class SimFabric final : public Agent {
 public:
  SimFabric(World& world, int rank);
  ~SimFabric();
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  const FabricFacts& facts() const { return facts_; }
  int rank() const { return rank_; }
  int size() const;

  // What rows that are put and taken out belong to, and so cost.
  enum class Part : std::uint8_t { dispatch, combine };
  void begin(Part part);

  const std::byte* acquire(int rank, Range range);
  void release(int rank, Range range);
  void abandon(int rank, Range range);
  void prepare(Range) const {}
  std::byte* claim(Range range);
  void commit(Range range, Store store);
  void replicate(int rank, std::span<const Range> ranges);
  std::byte* inbox(Range range);
  const std::byte* inbox_of(int rank, Range range);
  std::byte* claim_at(int rank, Range range);
  void commit_at(int rank, Range range, Store store);
  std::byte* incoming(int source, Range range);
  void taken(int source, Range range);
  bool flushed(int rank);
  std::uint64_t load_flag(int rank, std::uint64_t offset) const;
  void store_flag(std::uint64_t offset, std::uint64_t value);
  void signal(int rank, std::uint64_t offset, std::uint64_t value);
  void order(Ordering ordering);
  void post() const {}
  int progress();
  void work(Work work);
  PeerState peer_state(int rank) const;
  void set_state(PeerState state);

  void on_event(std::uint64_t fetch) override;  // it has arrived

  // What was acquired and not released, fetches under way included: "" or the first of them.
  std::string held() const;

 private:
  struct Place {
    int rank;
    std::uint64_t offset, bytes;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const {
      const std::uint64_t mixed =
          (place.offset ^ static_cast<std::uint64_t>(place.rank) << 44) * 0x9e3779b97f4a7c15ULL;
      return static_cast<std::size_t>((mixed >> 20) + place.bytes);
    }
  };
  struct Fetch {
    std::uint64_t number = 0;
    bool read_late = false;  // its bytes are those at the end, not at the start
    bool arrived = false;
    std::byte* copy = nullptr;  // null: its rows do not move
  };

  bool maps(int rank) const {
    return facts_.mapped || (!facts_.hosts.empty() && facts_.hosts.same(rank, rank_));
  }
  void check_rank(int rank, const char* call) const;
  void check(std::uint64_t size, Range range, const char* call) const;
  void check_segment(int rank, Range range, const char* call) const;
  void check_inbox(int rank, Range range, const char* call) const;
  std::vector<bool>::iterator claim_of(std::uint64_t offset);
  void end_claim(Range range);
  const LaneCosts& costs() const;
  void spend(Time cost) const;
  void prepare_rows(std::uint64_t bytes) const;
  void read_in_place(const Place& place);
  void publish(int peer, std::uint64_t offset, std::uint64_t value, const char* call);
  const std::byte* fetch(const Place& place);
  void read(const Place& place, const Fetch& fetch);
  void drop(const Place& place, const Fetch& fetch);

  World& world_;
  int rank_;
  Part part_ = Part::dispatch;
  FabricFacts facts_;
  // Of a pod's mapped memory: rows that were read in this part, and what was claimed last.
  std::unordered_set<Place, PlaceHash> read_rows_;
  Range claimed_range_;
  bool has_stored_ = false;  // where peers read, since the last order()
  std::unordered_map<Place, Fetch, PlaceHash> fetches_;
  std::unordered_set<Place, PlaceHash> replicas_;       // that peers have sent; flags follow them
  std::unordered_map<std::uint64_t, Place> under_way_;  // by number
  std::vector<std::uint64_t> landed_;                   // since the last progress()
  std::uint64_t number_ = 0;
  std::vector<bool> claimed_;  // weak memory: of each 4 bytes, whether they may be committed
};

}  // namespace ubep::sim
