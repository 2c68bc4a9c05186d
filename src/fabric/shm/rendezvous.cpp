#include "fabric/shm/rendezvous.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "fabric/shm/probe.hpp"
#include "fabric/shm/socket.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

constexpr auto kLinger = std::chrono::seconds(1);   // of rank 0, for ranks to be told of an error
constexpr auto kHearing = std::chrono::seconds(2);  // of who has connected, to say who it is
constexpr auto kLook = std::chrono::milliseconds(100);  // between looks at those who wait
constexpr std::uint64_t kMagic = 0x31'50'45'42'55;      // "UBEP1"

// The first three are the same in all wire versions, so that a difference can be told.
struct Hello {
  std::uint64_t magic;
  std::uint32_t wire_version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::uint64_t fields[kMaxAgreedFields];
};

// From rank 0 to the others. A refusal has this form in all wire versions.
struct Order {
  enum class Kind : std::uint32_t { refuse, segments, probe, go };
  Kind kind;
  std::int32_t cpu;     // probe: where rank 0 runs
  std::uint64_t first;  // probe: first flag value
  double one_way_ns;    // go: this rank's result
  char text[472];       // refuse
};
static_assert(sizeof(Order) == 496);

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::setup, text); }

std::string socket_name(const JoinRequest& request) {
  const std::size_t hash = std::hash<std::string>{}(request.job);
  return fmt::format("ubep-{}-{:016x}", geteuid(), hash);
}

std::string job_text(const JoinRequest& request) {
  return fmt::format("job '{}' of {} ranks (socket @{})", request.job, request.size,
                     socket_name(request));
}

Socket listen_for(const JoinRequest& request) {
  try {
    return Socket::listen(socket_name(request), request.size + 8);
  } catch (const Error& error) {
    fail(fmt::format("{} (job '{}')", error.what(), request.job));
  }
}

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

std::string difference(const AgreedFields& mine, int my_rank, const std::uint64_t* theirs,
                       int their_rank) {
  for (std::size_t i = 0; i < kMaxAgreedFields; ++i) {
    if (mine[i].name == nullptr || mine[i].value == theirs[i]) continue;
    const auto text = [&](std::uint64_t value) {
      return mine[i].text == nullptr ? std::to_string(value) : mine[i].text(value);
    };
    return fmt::format("{} differs: rank {} has {}, rank {} has {}", mine[i].name, my_rank,
                       text(mine[i].value), their_rank, text(theirs[i]));
  }
  return {};
}

// Closes what is still in the list.
struct CloseAll {
  std::vector<int>& fds;
  ~CloseAll() {
    for (int fd : fds) {
      if (fd >= 0) ::close(fd);
    }
  }
};
// What a rank hands to its peers: its segment and, where peers push, its inbox.
std::vector<int> descriptors_of(const Segment& segment) {
  std::vector<int> fds{segment.fd()};
  if (segment.inbox().fd() >= 0) fds.push_back(segment.inbox().fd());
  return fds;
}

// Takes over the descriptors at `fds`, and marks each as taken (-1).
std::shared_ptr<Segment> attach_peer(const JoinRequest& request, int rank, int* fds) {
  const auto i = static_cast<std::size_t>(rank);
  auto segment = std::make_shared<Segment>(
      Segment::attach(std::exchange(fds[0], -1), request.segment_bytes[i], rank));
  if (!request.inbox_bytes.empty() && request.inbox_bytes[i] != 0) {
    segment->set_inbox(
        SharedFile::attach(kInboxFile, std::exchange(fds[1], -1), request.inbox_bytes[i], rank));
  }
  return segment;
}

// Rank 0's side.
class Host {
 public:
  Host(const JoinRequest& request, std::shared_ptr<Segment> own)
      : request_(request), own_(std::move(own)), peers_(static_cast<std::size_t>(request.size)) {}

  Segments run(ProbeResult& probe) {
    try {
      gather();
      hand_out();
      Segments segments = attach_all();
      probe.one_way_ns = probe_all(segments);
      probe.host_cpu = first_cpu();
      for (const Peer& peer : peers_) probe.by_peer.push_back(peer.one_way_ns);
      return segments;
    } catch (const Error& error) {
      refuse_all(error.what());
      throw;
    }
  }

 private:
  struct Peer {
    Peer() = default;
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;
    ~Peer() { drop(); }

    void drop() {
      for (int fd : fds) {
        if (fd >= 0) ::close(fd);
      }
      fds.clear();
    }

    Socket socket;
    std::vector<int> fds;  // segment and inbox, until they are attached
    int pid = 0;
    double one_way_ns = 0;
  };

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int r = 1; r < request_.size; ++r) {
      if (!peers_[static_cast<std::size_t>(r)].socket.valid()) ranks.push_back(r);
    }
    return ranks;
  }

  // Returns once all ranks are here; the next set-up under this name cannot meet this one.
  void gather() {
    const Socket listener = listen_for(request_);
    try {
      while (!missing().empty()) accept_one(listener, request_.deadline);
    } catch (const Error&) {
      hear_others(listener);
      throw;
    }
  }

  // Not valid() after the deadline. Fails when one that has arrived goes away again.
  Socket next_guest(const Socket& listener, Deadline deadline) const {
    for (;;) {
      const auto now = std::chrono::steady_clock::now();
      Socket socket = listener.accept(std::min(deadline, now + kLook));
      if (socket.valid() || now >= deadline) return socket;
      for (std::size_t r = 1; r < peers_.size(); ++r) {
        if (!peers_[r].socket.gone()) continue;
        fail(fmt::format("{} went away during set-up of job '{}'; rank {} had not arrived", told(r),
                         request_.job, rank_list(missing())));
      }
    }
  }

  void accept_one(const Socket& listener, Deadline deadline) {
    Socket socket = next_guest(listener, deadline);
    if (!socket.valid()) {
      fail(fmt::format("rank 0: timeout: rank {} did not arrive for {}", rank_list(missing()),
                       job_text(request_)));
    }
    if (!socket.same_user()) return;                        // not ours to answer
    std::array<std::byte, 2 * sizeof(Hello)> message = {};  // other versions' may be longer
    std::vector<int> fds;
    const CloseAll not_taken{fds};
    const long got =
        socket.receive(message.data(), message.size(), fds,
                       std::min(deadline, std::chrono::steady_clock::now() + kHearing));
    Hello hello = {};
    std::memcpy(&hello, message.data(), sizeof(hello));
    // Connected and left, or something else that knows the name.
    if (got < static_cast<long>(offsetof(Hello, size)) || hello.magic != kMagic) return;
    const bool complete = got == sizeof(hello) && (fds.size() == 1 || fds.size() == 2);
    if (hello.wire_version == kWireVersion && !complete) return;
    std::string complaint = complaint_about(hello, socket.peer_pid());
    if (complaint.empty() && fds.size() != own_fds_.size()) complaint = "inboxes differ";
    if (!complaint.empty()) {
      refused_.push_back(std::move(socket));
      if (!has_arrived(hello.rank)) ++refused_missing_;
      fail(complaint);
    }
    Peer& peer = peers_[static_cast<std::size_t>(hello.rank)];
    peer.socket = std::move(socket);
    peer.fds = std::exchange(fds, {});
    peer.pid = peer.socket.peer_pid();
  }

  bool has_arrived(int rank) const {
    return rank > 0 && rank < request_.size &&
           peers_[static_cast<std::size_t>(rank)].socket.valid();
  }

  std::string told(std::size_t rank) const {
    return fmt::format("rank {} (process {})", rank, peers_[rank].pid);
  }

  std::string complaint_about(const Hello& hello, int pid) const {
    if (hello.wire_version != kWireVersion) {
      return fmt::format("wire version differs: rank 0 has {}, rank {} has {}", kWireVersion,
                         hello.rank, hello.wire_version);
    }
    if (hello.size != request_.size) {
      return fmt::format("size differs: rank 0 has {}, rank {} has {}", request_.size, hello.rank,
                         hello.size);
    }
    if (hello.rank <= 0 || hello.rank >= request_.size) {
      return fmt::format("rank {} joined, expected 1..{}", hello.rank, request_.size - 1);
    }
    if (has_arrived(hello.rank)) {
      return fmt::format("rank {} joined twice: processes {} and {} say so (job '{}')", hello.rank,
                         peers_[static_cast<std::size_t>(hello.rank)].pid, pid, request_.job);
    }
    for (int r = 0; r < request_.size; ++r) {
      const int other = r == 0 ? getpid() : peers_[static_cast<std::size_t>(r)].pid;
      if (other != hello.pid) continue;
      return fmt::format("ranks {} and {} are in one process: use a ThreadGroup for all ranks", r,
                         hello.rank);
    }
    return difference(request_.fields, 0, hello.fields, hello.rank);
  }

  static void send_refusal(const Socket& socket, const std::string& text) {
    Order order = {};
    order.kind = Order::Kind::refuse;
    std::strncpy(order.text, text.c_str(), sizeof(order.text) - 1);
    (void)socket.send(&order, sizeof(order));  // it may be gone: it learns it by the closed socket
  }

  // Lets those join that are only just arriving: what went wrong will be told to them too.
  void hear_others(const Socket& listener) {
    const Deadline soon = std::min(request_.deadline, std::chrono::steady_clock::now() + kLinger);
    while (missing().size() > refused_missing_ && std::chrono::steady_clock::now() < soon) {
      for (Peer& peer : peers_)
        peer.drop();  // nobody gets them any more, and there may be too many
      try {
        accept_one(listener, soon);
      } catch (const Error&) {  // one complaint is enough: the first
      }
    }
  }

  void refuse_all(const char* text) const {
    for (const Peer& peer : peers_) {
      if (peer.socket.valid()) send_refusal(peer.socket, text);
    }
    for (const Socket& socket : refused_) send_refusal(socket, text);
  }

  // Every rank gets the descriptors of all others, in rank order.
  void hand_out() {
    for (int r = 1; r < request_.size; ++r) {
      std::vector<int> fds = own_fds_;
      for (int q = 1; q < request_.size; ++q) {
        const std::vector<int>& theirs = peers_[static_cast<std::size_t>(q)].fds;
        if (q != r) fds.insert(fds.end(), theirs.begin(), theirs.end());
      }
      Order order = {};
      order.kind = Order::Kind::segments;
      const auto i = static_cast<std::size_t>(r);
      if (!peers_[i].socket.send(&order, sizeof(order), fds)) vanished(i);
    }
  }

  Segments attach_all() {
    Segments segments{own_};
    for (int r = 1; r < request_.size; ++r) {
      std::vector<int>& fds = peers_[static_cast<std::size_t>(r)].fds;
      segments.push_back(attach_peer(request_, r, fds.data()));
      fds.clear();
    }
    return segments;
  }

  [[noreturn]] void vanished(std::size_t rank) const {
    fail(fmt::format("{} {} during set-up of job '{}'", told(rank),
                     peers_[rank].socket.gone() ? "went away" : "did not answer", request_.job));
  }

  double probe_all(const Segments& segments) {
    double slowest = 0;
    bool all_measured = true;
    const int cpu = first_cpu();
    for (std::size_t r = 1; r < peers_.size(); ++r) {
      const std::uint64_t first = 1 + r * 1'000'000;
      Order order = {};
      order.kind = Order::Kind::probe;
      order.cpu = cpu;
      order.first = first;
      std::uint32_t can = 0;
      std::vector<int> none;
      if (!peers_[r].socket.send(&order, sizeof(order)) ||
          peers_[r].socket.receive(&can, sizeof(can), none, request_.deadline) < 0) {
        vanished(r);
      }
      if (can != 0 && cpu >= 0) {
        const PinnedTo pinned(cpu);
        peers_[r].one_way_ns =
            ping_pong_ns(own_->data() + kProbeOffset, segments[r]->data() + kProbeOffset,
                         {.starter = true, .first = first});
      }
      slowest = std::max(slowest, peers_[r].one_way_ns);
      all_measured = all_measured && peers_[r].one_way_ns > 0;
    }
    for (std::size_t r = 1; r < peers_.size(); ++r) {
      Order order = {};
      order.kind = Order::Kind::go;
      order.one_way_ns = peers_[r].one_way_ns;
      (void)peers_[r].socket.send(&order, sizeof(order));  // a death now shows in its life lock
    }
    return all_measured ? slowest : 0;
  }

  const JoinRequest& request_;
  std::shared_ptr<Segment> own_;
  std::vector<int> own_fds_ = descriptors_of(*own_);
  std::vector<Peer> peers_;
  std::vector<Socket> refused_;
  std::size_t refused_missing_ = 0;  // of these, those whose rank has not arrived otherwise
};

// The other ranks' side.
class Guest {
 public:
  Guest(const JoinRequest& request, std::shared_ptr<Segment> own)
      : request_(request), own_(std::move(own)) {}

  Segments run(ProbeResult& probe) {
    std::vector<int> fds;
    const CloseAll not_attached{fds};
    Order order = {};
    while (!introduce() || !receive(order, fds)) {
      // Rank 0 of an earlier set-up closed its socket under us: try again until the deadline.
      if (std::chrono::steady_clock::now() >= request_.deadline) {
        no_answer();
      }
    }
    Segments segments = attach(order, fds);
    const std::size_t attached = fds.size();
    // One probe at most, and no more descriptors (`fds` are closed): rank 0 could go on for ever.
    for (bool probed = false;; probed = true) {
      if (!receive(order, fds)) no_answer();
      if (order.kind == Order::Kind::go) break;
      if (order.kind != Order::Kind::probe || probed || fds.size() != attached) {
        fail("rank 0 sent an unexpected message");
      }
      answer_probe(order, segments);
      probe.host_cpu = order.cpu;
    }
    probe.one_way_ns = order.one_way_ns;
    return segments;
  }

 private:
  [[noreturn]] void no_answer() const {
    if (host_ == 0) {
      fail(fmt::format("rank {}: timeout: rank 0 did not arrive for {}", request_.rank,
                       job_text(request_)));
    }
    fail(fmt::format("rank {}: rank 0 (process {}) {} during set-up of {}", request_.rank, host_,
                     !socket_.valid() || socket_.gone() ? "went away" : "did not answer",
                     job_text(request_)));
  }

  bool introduce() {
    socket_ = Socket::connect(socket_name(request_), request_.deadline);
    if (!socket_.valid()) return false;
    host_ = socket_.peer_pid();
    if (!socket_.same_user()) fail("the rendezvous is held by another user");
    Hello hello = {};
    hello.magic = kMagic;
    hello.wire_version = kWireVersion;
    hello.rank = request_.rank;
    hello.size = request_.size;
    hello.pid = getpid();
    for (std::size_t i = 0; i < kMaxAgreedFields; ++i) hello.fields[i] = request_.fields[i].value;
    return socket_.send(&hello, sizeof(hello), descriptors_of(*own_));
  }

  bool receive(Order& order, std::vector<int>& fds) {
    // Rank 0 waits for the last rank until its own deadline and then says so: leave it time to.
    const auto patience = request_.deadline + std::chrono::seconds(2);
    if (socket_.receive(&order, sizeof(order), fds, patience) != sizeof(order)) return false;
    if (order.kind == Order::Kind::refuse) {
      order.text[sizeof(order.text) - 1] = 0;
      fail(fmt::format("rank {}: refused by rank 0: {}", request_.rank, order.text));
    }
    return true;
  }

  Segments attach(const Order& order, std::vector<int>& fds) {
    const auto size = static_cast<std::size_t>(request_.size);
    const std::size_t each = descriptors_of(*own_).size();
    if (order.kind != Order::Kind::segments || fds.size() != (size - 1) * each) {
      fail("rank 0 sent an unexpected message");
    }
    Segments segments;
    int* next = fds.data();
    for (int r = 0; r < request_.size; ++r) {
      segments.push_back(r == request_.rank ? own_ : attach_peer(request_, r, next));
      if (r != request_.rank) next += each;
    }
    return segments;
  }

  void answer_probe(const Order& order, const Segments& segments) {
    const int cpu = last_cpu_but(order.cpu);
    const std::uint32_t can = cpu >= 0 && order.cpu >= 0 ? 1 : 0;
    if (can == 0) {
      (void)socket_.send(&can, sizeof(can));
      return;
    }
    const PinnedTo pinned(cpu);
    (void)socket_.send(&can, sizeof(can));
    (void)ping_pong_ns(own_->data() + kProbeOffset, segments[0]->data() + kProbeOffset,
                       {.starter = false, .first = order.first});  // rank 0 measures
  }

  const JoinRequest& request_;
  std::shared_ptr<Segment> own_;
  Socket socket_;
  int host_ = 0;  // rank 0's process, once it was seen
};

// Set-ups of this process that are under way. Two of one rank and job could take each other's
// peers.
class OnlyOne {
 public:
  explicit OnlyOne(const JoinRequest& request) : key_(request.job, request.rank) {
    const std::lock_guard lock(mutex());
    if (under_way().insert(key_).second) return;
    fail(
        fmt::format("rank {} sets up two communicators of job '{}' at the same time: expected "
                    "one after the other, or names of their own (Bootstrap::job)",
                    request.rank, request.job));
  }
  ~OnlyOne() {
    const std::lock_guard lock(mutex());
    under_way().erase(key_);
  }
  OnlyOne(const OnlyOne&) = delete;
  OnlyOne& operator=(const OnlyOne&) = delete;

 private:
  using Key = std::pair<std::string, int>;
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::set<Key>& under_way() {
    static std::set<Key> instance;
    return instance;
  }
  Key key_;
};

}  // namespace

Segments join_processes(const JoinRequest& request, std::shared_ptr<Segment> own,
                        ProbeResult& probe) {
  if (request.size == 1) return {std::move(own)};
  const OnlyOne set_up(request);
  if (request.rank == 0) return Host(request, std::move(own)).run(probe);
  return Guest(request, std::move(own)).run(probe);
}

namespace detail {

ThreadRendezvous::ThreadRendezvous(int size)
    : waiting_(static_cast<std::size_t>(size)), fields_(static_cast<std::size_t>(size)) {}

std::string ThreadRendezvous::find_difference() const {
  for (std::size_t r = 1; r < fields_.size(); ++r) {
    std::uint64_t values[kMaxAgreedFields];
    for (std::size_t i = 0; i < kMaxAgreedFields; ++i) values[i] = fields_[r][i].value;
    std::string text = difference(fields_[0], 0, values, static_cast<int>(r));
    if (!text.empty()) return text;
  }
  return {};
}

std::string ThreadRendezvous::missing() const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < waiting_.size(); ++r) {
    if (waiting_[r] == nullptr) ranks.push_back(static_cast<int>(r));
  }
  return rank_list(ranks);
}

// Ends this set-up, alike for all who wait, and begins the next.
void ThreadRendezvous::settle(std::string error) {
  outcome_->segments = std::exchange(waiting_, Segments(waiting_.size()));
  outcome_->error = std::move(error);
  outcome_->known = true;
  outcome_ = std::make_shared<Outcome>();
  arrived_ = 0;
  changed_.notify_all();
}

Segments ThreadRendezvous::join(const JoinRequest& request, std::shared_ptr<Segment> own) {
  if (static_cast<std::size_t>(request.size) != waiting_.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("size is {}, expected {} as in the ThreadGroup", request.size,
                            waiting_.size()));
  }
  std::unique_lock lock(mutex_);
  const auto rank = static_cast<std::size_t>(request.rank);
  if (waiting_[rank] != nullptr) fail(fmt::format("rank {} joined twice", request.rank));
  waiting_[rank] = std::move(own);
  fields_[rank] = request.fields;
  const std::shared_ptr<Outcome> outcome = outcome_;
  if (++arrived_ == request.size) {
    settle(find_difference());
  } else if (!changed_.wait_until(lock, request.deadline, [&] { return outcome->known; })) {
    settle(fmt::format("timeout: rank {} did not arrive in the ThreadGroup of {} ranks", missing(),
                       request.size));
  }
  if (!outcome->error.empty()) fail(outcome->error);
  return outcome->segments;
}

}  // namespace detail
}  // namespace ubep
