// Ranks on several hosts: shared memory inside a host, UCX between hosts, pair by pair.
//
// Of every rank of another host there is a private copy of its segment, and of its inbox. The rank
// itself puts its words, op lines and records into the copy of its segment (replicate, store_flag);
// everything else in it is fetched when it is acquired. Rows for its inbox are written into the
// copy of the inbox, at their place, and put from there.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/fabric_facts.hpp"
#include "fabric/shm/fabric.hpp"
#include "fabric/tcp/meeting.hpp"
#include "fabric/ucx/transport.hpp"

namespace ubep {

class UcxFabric {
 public:
  struct Joined {
    std::unique_ptr<ShmFabric> local;  // ranks of this host
    std::unique_ptr<UcxFabric> all;    // uses `local`
  };
  // Collective. Throws Error{setup}.
  static Joined join(const JoinRequest& request, const TcpPlace& place);
  static void decline(const JoinRequest& request, const TcpPlace& place, const char* why);
  // Waits until all that was sent has arrived, for as long as the set-up had left when it was done.
  ~UcxFabric();

  const FabricFacts& facts() const { return facts_; }
  int rank() const { return local_.rank(); }
  int size() const { return local_.size(); }

  const std::byte* acquire(int rank, Range range);
  void release(int rank, Range range);
  void abandon(int rank, Range range);
  void prepare(Range range) { local_.prepare(range); }
  std::byte* claim(Range range) { return local_.claim(range); }
  void commit(Range range, Store store) const { local_.commit(range, store); }
  void replicate(int rank, std::span<const Range> ranges);

  std::byte* inbox(Range range) { return local_.inbox(range); }
  const std::byte* inbox_of(int rank, Range range) { return local_.inbox_of(rank, range); }
  std::byte* claim_at(int rank, Range range) { return local_.claim_at(rank, range); }
  void commit_at(int rank, Range range, Store store);
  std::byte* incoming(int, Range range) { return local_.inbox(range); }
  void taken(int, Range) const {}
  bool flushed(int rank);

  std::uint64_t load_flag(int rank, std::uint64_t offset) const {
    // acquires: what `rank` stored before this value, or put here before it.
    return local_.load_flag(rank, offset);
  }
  void store_flag(std::uint64_t offset, std::uint64_t value);
  void signal(int rank, std::uint64_t offset, std::uint64_t value);
  void order(Ordering ordering);
  void post();
  int progress();
  void work(Work) const {}

  PeerState peer_state(int rank);
  void set_state(PeerState state);

  const std::vector<int>& members() const { return members_; }  // of all hosts, ascending
  bool is_remote(int rank) const { return !host_of(rank).is_mine; }
  const std::string& host_name(int rank) const { return host_of(rank).name; }
  int host_number(int rank) const { return host_of(rank).number; }
  std::string transport() const;
  std::uint64_t bytes_between_hosts();

 private:
  struct Host {
    std::string name;
    int number = 0;  // ranks of one host have it alike
    bool is_mine = false;
  };
  // Rows for one rank that lie one behind the other, and were not put yet.
  struct Pending {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // Of a rank's segment into its copy here.
  struct Fetch {
    int rank;
    Range range;
    int done = 0;  // 1: it is here, 2: it will not come
    bool wanted = true;
  };
  // Of each peer, for me: its inbox, its segment (only to be read), its copy of my segment.
  enum WindowIndex : std::size_t { kInbox, kSegment, kCopy };

  UcxFabric(const JoinRequest& request, ShmFabric& local, std::vector<Host> hosts,
            std::vector<int> members);
  static std::vector<Host> compare_hosts(const std::vector<std::string>& told,
                                         const std::string& mine);
  std::vector<Window> windows_for(int rank, const JoinRequest& request);
  void connect(const JoinRequest& request, TcpMeeting& meeting);
  void await_words(const JoinRequest& request, std::uint64_t offset);
  const Host& host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  void put_pending(int rank);
  void put_word(std::span<const int> ranks, std::uint64_t offset, std::uint64_t value);
  std::byte* copy_of(int rank, Range range) {
    return const_cast<std::byte*>(local_.acquire(rank, range));
  }

  ShmFabric& local_;
  int pid_;
  std::vector<Host> hosts_;
  std::vector<int> members_;
  std::vector<int> remote_;  // of members_
  FabricFacts facts_;
  std::vector<std::uint64_t> told_bytes_;  // JoinRequest
  std::chrono::milliseconds linger_{};
  std::mutex mutex_;                         // of all below: any lane puts and fetches
  std::vector<Pending> pending_;             // [R]
  std::list<Fetch> fetches_;                 // some end only with the transport
  std::unique_ptr<UcxTransport> transport_;  // null: all ranks are here
};

}  // namespace ubep
