#include "fabric/shm/rendezvous.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <utility>

#include "fabric/shm/probe.hpp"
#include "fabric/shm/socket.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

constexpr auto kLinger = std::chrono::seconds(1);   // of rank 0, for ranks to be told of an error
constexpr std::uint64_t kMagic = 0x31'50'45'42'55;  // "UBEP1"

struct Hello {
  std::uint64_t magic;
  std::uint32_t wire_version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::uint64_t fields[kMaxAgreedFields];
};

// From rank 0 to the others.
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

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

std::string difference(const AgreedFields& mine, int my_rank, const std::uint64_t* theirs,
                       int their_rank) {
  for (std::size_t i = 0; i < kMaxAgreedFields; ++i) {
    if (mine[i].name == nullptr || mine[i].value == theirs[i]) continue;
    return fmt::format("{} differs: rank {} has {}, rank {} has {}", mine[i].name, my_rank,
                       mine[i].value, their_rank, theirs[i]);
  }
  return {};
}

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
    segment->set_inbox(Inbox::attach(std::exchange(fds[1], -1), request.inbox_bytes[i], rank));
  }
  return segment;
}

// Rank 0's side.
class Host {
 public:
  Host(const JoinRequest& request, std::shared_ptr<Segment> own)
      : request_(request), own_(std::move(own)), peers_(static_cast<std::size_t>(request.size)) {}

  Segments run(ProbeResult& probe) {
    {
      const Socket listener = Socket::listen(socket_name(request_), request_.size + 8);
      try {
        while (!missing().empty()) accept_one(listener, request_.deadline);
        hand_out();
      } catch (const Error& error) {
        refuse_all(listener, error.what());
        throw;
      }
    }  // closed: the next set-up under this name cannot meet this one
    Segments segments = attach_all();
    probe.one_way_ns = probe_all(segments);
    probe.host_cpu = first_cpu();
    for (const Peer& peer : peers_) probe.by_peer.push_back(peer.one_way_ns);
    return segments;
  }

 private:
  struct Peer {
    Peer() = default;
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;
    ~Peer() {
      for (int fd : fds) {
        if (fd >= 0) ::close(fd);
      }
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

  void accept_one(const Socket& listener, Deadline deadline) {
    Socket socket = listener.accept(deadline);
    if (!socket.valid()) {
      fail(fmt::format("rank 0: timeout: rank {} did not arrive for job '{}' of {} ranks",
                       rank_list(missing()), request_.job, request_.size));
    }
    if (!socket.same_user()) return;  // not ours to answer
    Hello hello = {};
    std::vector<int> fds;
    const long got = socket.receive(&hello, sizeof(hello), fds, deadline);
    if (got != sizeof(hello) || fds.empty() || fds.size() > 2 || hello.magic != kMagic) {
      for (int fd : fds) ::close(fd);
      return;  // connected and left, or something else that knows the name
    }
    admit(hello, std::move(socket), std::move(fds));
  }

  void admit(const Hello& hello, Socket socket, std::vector<int> fds) {
    std::string complaint = complaint_about(hello);
    if (complaint.empty() && fds.size() != own_fds_.size()) complaint = "inboxes differ";
    if (!complaint.empty()) {
      for (int fd : fds) ::close(fd);
      refused_.push_back(std::move(socket));
      fail(complaint);
    }
    Peer& peer = peers_[static_cast<std::size_t>(hello.rank)];
    peer.socket = std::move(socket);
    peer.fds = std::move(fds);
    peer.pid = peer.socket.peer_pid();
  }

  std::string complaint_about(const Hello& hello) const {
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
    if (peers_[static_cast<std::size_t>(hello.rank)].socket.valid()) {
      return fmt::format("rank {} joined twice", hello.rank);
    }
    for (int r = 0; r < request_.size; ++r) {
      const int pid = r == 0 ? getpid() : peers_[static_cast<std::size_t>(r)].pid;
      if (pid != hello.pid) continue;
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

  // Tells everyone what went wrong, those too that are only just arriving.
  void refuse_all(const Socket& listener, const char* text) {
    const Deadline soon = std::min(request_.deadline, std::chrono::steady_clock::now() + kLinger);
    while (missing().size() > refused_.size() && std::chrono::steady_clock::now() < soon) {
      try {
        accept_one(listener, soon);
      } catch (const Error&) {  // one complaint is enough: the first
      }
    }
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
      if (!peers_[static_cast<std::size_t>(r)].socket.send(&order, sizeof(order), fds)) {
        fail(fmt::format("rank {} vanished during set-up", r));
      }
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
        fail(fmt::format("rank {} vanished during set-up", r));
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
};

// Closes what is still in the list.
struct CloseAll {
  std::vector<int>& fds;
  ~CloseAll() {
    for (int fd : fds) {
      if (fd >= 0) ::close(fd);
    }
  }
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
        fail(fmt::format("rank {}: timeout: rank 0 did not answer for job '{}'", request_.rank,
                         request_.job));
      }
    }
    Segments segments = attach(order, fds);
    for (;;) {
      fds.clear();
      if (!receive(order, fds)) fail("rank 0 vanished during set-up");
      if (order.kind == Order::Kind::go) break;
      if (order.kind == Order::Kind::probe) answer_probe(order, segments);
      if (order.kind == Order::Kind::probe) probe.host_cpu = order.cpu;
    }
    probe.one_way_ns = order.one_way_ns;
    return segments;
  }

 private:
  bool introduce() {
    socket_ = Socket::connect(socket_name(request_), request_.deadline);
    if (!socket_.valid()) return false;
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
};

}  // namespace

Segments join_processes(const JoinRequest& request, std::shared_ptr<Segment> own,
                        ProbeResult& probe) {
  if (request.size == 1) return {std::move(own)};
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
  const std::uint64_t generation = generation_;
  if (++arrived_ == request.size) {
    error_ = find_difference();
    complete_ = std::exchange(waiting_, Segments(waiting_.size()));
    arrived_ = 0;
    ++generation_;
    changed_.notify_all();
  } else if (!changed_.wait_until(lock, request.deadline,
                                  [&] { return generation_ != generation; })) {
    std::vector<int> missing;
    for (std::size_t r = 0; r < waiting_.size(); ++r) {
      if (waiting_[r] == nullptr) missing.push_back(static_cast<int>(r));
    }
    waiting_[rank] = nullptr;
    --arrived_;
    fail(fmt::format("rank {}: timeout: rank {} did not arrive", request.rank, rank_list(missing)));
  }
  Segments segments = complete_;
  if (++picked_up_ == request.size) {
    complete_.clear();
    picked_up_ = 0;
  }
  if (!error_.empty()) fail(error_);
  return segments;
}

}  // namespace detail
}  // namespace ubep
