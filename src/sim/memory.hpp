// The memory of all ranks, and what each rank sees of the others' at a given time.
//
// Strong: stores to an own segment are visible at once (flags still take their time), rows that are
// put into an inbox once their message has arrived.
// Weak: every peer has a picture of its own. Stored bytes appear there in units, each late by a
// random time, in any order that the flags allow: a flag appears after everything that was stored
// before it by plain stores, or by others that an order() covers. Bytes that were never committed
// never appear.
//
// Two writes to the same bytes never change their order: the one that was issued last stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/fabric_facts.hpp"
#include "memory/private_rows.hpp"
#include "sim/event_queue.hpp"
#include "sim/fifo.hpp"
#include "sim/random.hpp"
#include "ubep/types.hpp"

namespace ubep::sim {

struct MemoryOptions {
  std::vector<std::uint64_t> segment_bytes;  // [ranks]
  std::vector<std::uint64_t> inbox_bytes;    // [ranks], or none
  bool moves_rows = true;
  bool weak = false;
  std::uint32_t unit = 16;        // weak: bytes that appear at once
  std::uint32_t claims_unit = 0;  // a planted fault: the fabric says so instead of `unit`
  bool in_order = false;          // weak: units appear in the order of their stores
  Time delay = 0;                 // weak: of a unit or a flag, at most
  bool loses_release = false;     // a planted fault: flags wait for nothing
  bool loses_signal = false;      // the same of signals only, which one peer looks at
  bool tells_puts = false;        // ranks have news when bytes arrive in their inbox,
  bool tells_acks = false;        //   and when theirs were acknowledged
  std::uint64_t seed = 1;
};

// What one lane stored past its caches and has not ordered yet.
struct Loose {
  int to = 0;
  Time at = 0;            // when the last unit appears, or
  std::uint64_t put = 0;  // the message, by its number
};

class Memory {
 public:
  static constexpr std::uint64_t kStateWord = 0;  // of the fabric's header

  Memory(const EventQueue& queue, const MemoryOptions& options,
         std::function<void(int rank, Time at)> tell);

  const MemoryOptions& options() const { return options_; }
  int size() const { return static_cast<int>(options_.segment_bytes.size()); }

  std::byte* own(int rank) { return node(rank).segment.data(); }
  const std::byte* seen(int rank, int peer);
  std::byte* inbox(int rank) { return node(rank).inbox.data(); }
  // Where rows do not move: whether a put to this place has landed and was not taken since.
  bool has_landed(int rank, std::uint64_t offset) { return node(rank).landed.contains(offset); }
  void take_landed(int rank, std::uint64_t offset) { node(rank).landed.erase(offset); }
  // Whether `peer` has acknowledged all puts of `rank`; its answers take `way_back`.
  bool flushed(int rank, int peer);
  void set_way_back(std::function<Time(int from, int to)> way_back) {
    way_back_ = std::move(way_back);
  }
  // Puts whose bytes appeared bit by bit: each is a fault that readers must not fall for.
  std::uint64_t torn_puts() const { return torn_puts_; }
  // Where `rank` writes what it will put into the inbox of `peer`.
  std::byte* outgoing(int rank, int peer);

  void commit(int rank, Range range, Store store, std::vector<Loose>& loose);
  // A message to an inbox; `land` when it has arrived.
  std::uint64_t put(int rank, int peer, Range range, Store store, std::vector<Loose>& loose);
  void land(std::uint64_t put);
  void order(int rank, std::vector<Loose>& loose);

  // `peer` -1: to all. `latency(peer)` is the way of a flag.
  void store_flag(int rank, int peer, std::uint64_t offset, std::uint64_t value,
                  const std::function<Time(int)>& latency);
  std::uint64_t load_flag(int rank, int peer, std::uint64_t offset);
  // Whether everything that `peer` ever stored has reached `rank`.
  bool has_all_of(int rank, int peer);
  // Brings what `rank` sees up to now.
  void absorb(int rank);

 private:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  struct Unit {
    Time at;
    std::uint64_t number;
    std::byte* to;
    Bytes bytes;
    std::uint32_t first;
    std::uint32_t count;
    bool operator<(const Unit& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  struct Flag {
    std::uint64_t offset;
    std::uint64_t value;
    Time at;
    std::uint64_t needs;  // puts that must have landed
    bool resolved;
  };
  struct Word {
    std::uint64_t offset;
    std::uint64_t value;
  };
  // What flows from one rank to another.
  struct Pair {
    Fifo<Flag> flags;
    std::vector<Word> words;
    std::uint64_t issued = 0;          // puts that flags wait for
    std::uint64_t landed = 0;          // all of them up to this number
    std::vector<std::uint64_t> early;  // landed before one with a smaller number
    Time covered = 0;                  // when all bytes before the next flag have appeared
    Time last = 0;                     // when the newest flag appears
    Time last_unit = 0;                // in order: when the newest unit does
    std::uint64_t unacknowledged = 0;  // puts
    Time last_landing = 0;             // when the last byte of those that landed appears
  };
  struct Put {
    int rank;
    int peer;
    Range range;
    Bytes bytes;
    std::uint64_t number = 0;  // in its pair; 0 = no flag waits for it yet
    Time landed_at = kNever;
    std::vector<Range> overtaken;  // by later writes
  };
  struct Node {
    PrivateRows segment;
    PrivateRows inbox;
    std::vector<PrivateRows> pictures;         // [ranks]
    std::vector<PrivateRows> outgoing;         // [ranks]
    std::vector<Unit> coming;                  // a heap
    std::vector<Word> words;                   // own
    std::unordered_set<std::uint64_t> landed;  // offsets of puts, where rows do not move
    std::uint64_t under_way = 0;               // own puts
    Time last_unit = 0;                        // when the last of its bytes appears anywhere
  };

  Node& node(int rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  Pair& pair(int from, int to) {
    return pairs_[static_cast<std::size_t>(from) * nodes_.size() + static_cast<std::size_t>(to)];
  }
  static std::uint64_t& word(std::vector<Word>& words, std::uint64_t offset);
  Time spread(int from, int to, std::byte* base, Range range, const Bytes& bytes);
  void resolve(int from, int to);
  static void note_landed(Pair& pair, std::uint64_t number);
  void write_landed(std::uint64_t number);
  void write_part(Put& put, std::byte* base, Range part);

  const EventQueue& queue_;
  MemoryOptions options_;
  std::function<void(int, Time)> tell_;
  std::function<Time(int, int)> way_back_;
  std::uint64_t torn_puts_ = 0;
  Random random_;
  std::vector<Node> nodes_;
  std::vector<Pair> pairs_;
  std::vector<Put> puts_;            // number - 1
  std::vector<std::uint64_t> free_;  // numbers to be used again
  std::vector<std::uint64_t> open_;  // puts under way, oldest first (where rows move)
  std::uint64_t units_ = 0;
};

}  // namespace ubep::sim
