// A fabric without mapped memory: ranks are objects of one process that see nothing of each other
// but what was published, and see it late.
//
// Purpose: whatever a caller of the fabric leaves out (commit, release, the flag before the data)
// or takes for granted (mapped memory, prompt flags) makes a test fail. Not for speed.
//
//   StagedWorld world({.segment_bytes = {4096, 4096}, .seed = 1});
//   std::memcpy(world.rank(0).claim(range), data, range.bytes);
//   world.rank(0).commit(range);
//   world.rank(0).store_flag(offset, 1);
//   while (world.rank(1).load_flag(0, offset) != 1) world.rank(1).progress();
//   const std::byte* copy = nullptr;
//   while ((copy = world.rank(1).acquire(0, range)) == nullptr) world.rank(1).progress();
//   world.rank(1).release(0, range);          // copy is gone: touching it ends the process
//
// claim    memory of the own segment that nobody else sees. commit takes a snapshot of it; the
//          snapshot travels with the next flag. Committing what was not claimed aborts.
// claim_at memory that nobody else sees, for rows of a peer's inbox. commit_at takes a snapshot,
//          which reaches that inbox at once, or with the next flag.
// flags    and states reach every peer in the order of their stores, a random number of them at
//          each progress() of that peer. A flag that does not grow aborts.
// acquire  starts a fetch that ends after a random number of progress() calls. It yields what was
//          published at some time between; bytes that never were are 0xff. Until release() or
//          abandon() the answer stays the same. Releasing what has not been acquired aborts.
//
// Any thread may call (one lock for all), so that one suite fits all fabrics.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fabric_facts.hpp"
#include "memory/private_rows.hpp"
#include "support/random.hpp"

namespace ubep::test {

inline constexpr std::byte kUnpublished{0xff};  // a NaN in every type, an index beyond every list

// Bytes of which most are never written.
class SparseBytes {
 public:
  void write(std::uint64_t offset, const std::vector<std::byte>& bytes);
  void read(std::uint64_t offset, std::byte* to, std::uint64_t bytes) const;

 private:
  std::unordered_map<std::uint64_t, std::vector<std::byte>> blocks_;
};

// Copies that cannot be touched once they were given back: their pages lose all access and are
// used again as late as possible.
class GuardedCopies {
 public:
  static GuardedCopies& all();  // one for the process: fresh pages are slow

  // 64-byte aligned; the copy ends where its last page ends, to whole lines.
  std::byte* make(std::uint64_t bytes);
  void drop(std::byte* copy, std::uint64_t bytes);

 private:
  GuardedCopies();

  std::mutex mutex_;
  std::byte* pages_;
  std::vector<bool> used_;
  std::size_t next_ = 0;
};

class StagedWorld;

class StagedFabric {
 public:
  StagedFabric(StagedWorld& world, int rank, std::uint64_t bytes, std::uint64_t seed);
  ~StagedFabric();
  StagedFabric(const StagedFabric&) = delete;
  StagedFabric& operator=(const StagedFabric&) = delete;

  const FabricFacts& facts() const { return facts_; }
  int rank() const { return rank_; }
  int size() const;

  const std::byte* acquire(int rank, Range range);
  void release(int rank, Range range);
  void abandon(int rank, Range range);
  void prepare(Range) const {}
  std::byte* claim(Range range);
  void commit(Range range, Store store = Store::near);
  std::byte* inbox(Range range);
  std::byte* claim_at(int rank, Range range);
  void commit_at(int rank, Range range, Store store = Store::near);
  std::uint64_t load_flag(int rank, std::uint64_t offset) const;
  void store_flag(std::uint64_t offset, std::uint64_t value);
  void signal(int, std::uint64_t offset, std::uint64_t value) { store_flag(offset, value); }
  void order(Ordering) const {}
  int progress();
  void work(Work) const {}
  PeerState peer_state(int rank) const;
  void set_state(PeerState state);

  // What was acquired and not released, fetches under way included: "" or the first of them.
  std::string held() const;

 private:
  friend class StagedWorld;

  struct Snapshot {
    std::uint64_t offset;
    std::vector<std::byte> bytes;
    int inbox_of = -1;  // of the segment otherwise
  };
  // One store_flag() or set_state(), with the bytes committed before.
  struct Message {
    std::vector<Snapshot> data;
    bool is_state = false;
    std::uint64_t offset = 0;
    std::uint64_t value = 0;  // of the flag, or the state
  };
  // What this rank has learnt of one rank; of itself, what it has published.
  struct View {
    std::deque<std::shared_ptr<const Message>> under_way;
    SparseBytes bytes;
    std::map<std::uint64_t, std::uint64_t> flags;
    PeerState state = PeerState::live;
  };
  struct Fetch {
    int calls_left = 0;
    bool read_late = false;    // its bytes are those at the end, not at the start
    bool read_newest = false;  // its bytes may be newer than the flags that arrived
    std::byte* copy = nullptr;
    bool arrived = false;
  };
  struct Place {
    int rank;
    std::uint64_t offset, bytes;
    auto operator<=>(const Place&) const = default;
  };

  View& view(int rank) { return views_[static_cast<std::size_t>(rank)]; }
  const View& view(int rank) const { return views_[static_cast<std::size_t>(rank)]; }
  void check(int rank, Range range, const char* call) const;
  void publish(Message message);
  void deliver(View& view);
  void put(const Snapshot& snapshot);
  void check_inbox(int rank, Range range, const char* call) const;
  void read(const Place& place, const Fetch& fetch) const;

  StagedWorld& world_;
  int rank_;
  FabricFacts facts_;
  Random random_;
  PrivateRows staging_;
  PrivateRows inbox_;
  std::vector<PrivateRows> outgoing_;  // [R] what is put into each inbox
  std::vector<bool> claimed_;          // per 4 bytes
  std::vector<Snapshot> committed_;
  std::vector<View> views_;
  std::map<Place, Fetch> fetches_;
  bool dead_ = false;
};

class StagedWorld {
 public:
  struct Options {
    std::vector<std::uint64_t> segment_bytes;  // one per rank
    std::vector<std::uint64_t> inbox_bytes;    // one per rank, or none
    std::uint64_t seed = 1;
    int max_delay = 3;  // progress() calls that a fetch takes at most
  };

  explicit StagedWorld(const Options& options);

  StagedFabric& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // The rank acts no more. What it has published still arrives, then its state; what it had
  // committed only is lost.
  void end(int rank, PeerState state);

 private:
  friend class StagedFabric;
  Options options_;
  std::recursive_mutex mutex_;
  std::vector<std::unique_ptr<StagedFabric>> ranks_;
};

}  // namespace ubep::test
