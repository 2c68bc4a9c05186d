// The shared-memory fabric: every segment is mapped, so acquire and claim are additions.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/fabric_facts.hpp"
#include "fabric/shm/notice.hpp"
#include "fabric/shm/probe.hpp"
#include "fabric/shm/thread_rendezvous.hpp"
#include "memory/copy.hpp"
#include "memory/word.hpp"

namespace ubep {

class ShmFabric {
 public:
  // Collective. `threads` = ranks are threads of this process.
  static std::unique_ptr<ShmFabric> join(const JoinRequest& request,
                                         detail::ThreadRendezvous* threads);
  // Instead, by a rank that cannot: the others are told why. join() does so of its own failures.
  static void decline(const JoinRequest& request, detail::ThreadRendezvous* threads,
                      const char* why);
  ~ShmFabric();

  const FabricFacts& facts() const { return facts_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(base_.size()); }

  const std::byte* acquire(int rank, Range range) const { return at(rank) + range.offset; }
  void release(int, Range) const {}
  void abandon(int, Range) const {}
  // Makes the bytes resident up to a high-water mark per area (docs/adr/0006: in small pages).
  void prepare(Range range);
  std::byte* claim(Range range) { return own_ + range.offset; }
  void commit(Range, Store) const {}
  void replicate(int, std::span<const Range>) const {}

  std::byte* inbox(Range range) { return claim_at(rank_, range); }
  const std::byte* inbox_of(int rank, Range range) { return claim_at(rank, range); }
  std::byte* claim_at(int rank, Range range) {
    return inbox_[static_cast<std::size_t>(rank)] + range.offset;
  }
  void commit_at(int, Range, Store) const {}
  std::byte* incoming(int, Range range) { return inbox(range); }
  void taken(int, Range) const {}
  bool flushed(int) const { return true; }  // stores that are ordered are in the memory of all

  std::uint64_t load_flag(int rank, std::uint64_t offset) const {
    // acquires: what `rank` stored before this value; the caller says what that is.
    return SharedWord(at(rank) + offset).load_acquire();
  }
  void store_flag(std::uint64_t offset, std::uint64_t value) {
    // publishes: what this rank stored before; the caller says what that is.
    SharedWord(own_ + offset).store_release(value);
  }
  // publishes: as store_flag() does; the word lies with all others.
  void signal(int, std::uint64_t offset, std::uint64_t value) { store_flag(offset, value); }
  void order(Ordering) const { store_fence(); }  // orders: non-temporal stores before the flag
  void post() const {}
  int progress() const { return 0; }
  void work(Work) const {}

  // Measures again how far the first member is from one other rank, whose turn `number` (1, 2, ...)
  // says. All ranks call it at about the same time; whoever does not costs the two up to a
  // millisecond. `pin`: to two CPUs for that time, as at set-up; else where they are. Returns
  // whether facts() are new. Ranks that are threads have no probe.
  bool probe_again(std::uint64_t number, bool pin);

  PeerState peer_state(int rank) const;
  // Ends the process of a peer, and waits for its end. Throws Error{setup}.
  void end_peer(int rank) const;
  const std::vector<int>& members() const { return members_; }  // who takes part, ascending

  // For whoever looks from outside (notice.hpp).
  void introduce(Identity identity);
  void show_wait(const WaitShown& wait) { ubep::show_wait(own_, wait); }

  void set_state(PeerState state);

  // [offset, offset + bytes) of all segments one behind the other, read-only. Kept until the end.
  const std::byte* map_side_by_side(Range range);

 private:
  ShmFabric(int rank, Segments segments, bool threads);
  const std::byte* at(int rank) const { return base_[static_cast<std::size_t>(rank)]; }

  struct SideBySide {
    std::uint64_t offset;
    std::byte* data;
    std::size_t bytes;
  };

  int rank_;
  bool threads_;
  int pid_;
  Segments segments_;
  std::vector<int> members_;
  std::uint64_t group_ = 0;
  std::vector<const std::byte*> base_;
  std::byte* own_;
  std::vector<std::byte*> inbox_;
  FabricFacts facts_;
  ProbeResult probe_;
  std::vector<SideBySide> windows_;
  std::vector<Range> prepared_;  // start of an area, bytes made resident
};

}  // namespace ubep
