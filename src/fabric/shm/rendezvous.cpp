#include "fabric/shm/rendezvous.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include "base/system_limits.hpp"
#include "fabric/shm/messages.hpp"
#include "fabric/shm/probe.hpp"
#include "fabric/shm/socket.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);  // between looks at those who wait

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::setup, text); }

Socket listen_for(const JoinRequest& request) {
  try {
    return Socket::listen(socket_name(request), request.size + 8);
  } catch (const Error& error) {
    decline_processes(request, error.what());
    fail(fmt::format("{} (job '{}')", error.what(), request.job));
  }
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

// Of ranks that are no members, an empty one that nobody else has.
Segments absent_segments(const JoinRequest& request) {
  Segments segments;
  for (int r = 0; r < request.size; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (std::find(request.members.begin(), request.members.end(), r) != request.members.end()) {
      segments.push_back(nullptr);
      continue;
    }
    auto segment = std::make_shared<Segment>(Segment::absent(request.segment_bytes[i], r));
    if (!request.inbox_bytes.empty()) {
      segment->set_inbox(SharedFile::absent(kInboxFile, request.inbox_bytes[i]));
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

// The first member's side.
class Host {
 public:
  Host(const JoinRequest& request, std::shared_ptr<Segment> own)
      : request_(request), own_(std::move(own)), peers_(static_cast<std::size_t>(request.size)) {}

  Meeting run() {
    Meeting meeting{.segments = {}, .group = random_number(), .probe = {}};
    try {
      gather();
      hand_out(meeting.group);
      meeting.segments = attach_all();
      meeting.probe.one_way_ns = probe_all(meeting.segments);
      meeting.probe.host_cpu = first_cpu();
      for (const Peer& peer : peers_) meeting.probe.by_peer.push_back(peer.one_way_ns);
      return meeting;
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

  // Those that join; the first member is this rank.
  std::span<const int> others() const { return std::span(request_.members).subspan(1); }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int r : others()) {
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
      for (int rank : others()) {
        const auto r = static_cast<std::size_t>(rank);
        if (!peers_[r].socket.gone()) continue;
        fail(fmt::format("{} went away during set-up of job '{}'; rank {} had not arrived", told(r),
                         request_.job, rank_list(missing())));
      }
    }
  }

  void accept_one(const Socket& listener, Deadline deadline) {
    Socket socket = next_guest(listener, deadline);
    if (!socket.valid()) {
      fail(fmt::format(
          "rank {}: timeout: rank {} did not arrive for {}{}", request_.rank, rank_list(missing()),
          job_text(request_),
          strangers_ == 0
              ? ""
              : fmt::format("; {} that do not know the job key were refused", strangers_)));
    }
    if (!socket.same_user()) return;                     // not ours to answer
    std::array<std::byte, sizeof(Regret)> message = {};  // other versions' may be longer
    std::vector<int> fds;
    const CloseAll not_taken{fds};
    const long got =
        socket.receive(message.data(), message.size(), fds,
                       std::min(deadline, std::chrono::steady_clock::now() + kHearing));
    Hello hello = {};
    std::memcpy(&hello, message.data(), sizeof(hello));
    // Connected and left, or something else that knows the name.
    if (got < static_cast<long>(offsetof(Hello, size)) || hello.magic != kMagic) return;
    // Who does not know the key cannot end the set-up, whatever it says.
    if (request_.key.given() && (got != sizeof(hello) || hello.wire_version != kWireVersion ||
                                 !challenge_guest(request_, socket, hello, fds))) {
      ++strangers_;
      return;
    }
    if (const auto regret = regret_in(std::span(message).first(static_cast<std::size_t>(got)))) {
      if (!has_arrived(hello.rank)) ++refused_missing_;
      fail(fmt::format("rank {} (process {}) cannot join: {}", hello.rank, socket.peer_pid(),
                       regret->text));
    }
    const bool keyed = hello.keyed == 1 && !request_.key.given();  // it holds its descriptors back
    const bool complete =
        got == sizeof(hello) && (fds.size() == 1 || fds.size() == 2 || (keyed && fds.empty()));
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
    return rank >= 0 && rank < request_.size &&
           peers_[static_cast<std::size_t>(rank)].socket.valid();
  }

  std::string told(std::size_t rank) const {
    return fmt::format("rank {} (process {})", rank, peers_[rank].pid);
  }

  std::string complaint_about(const Hello& hello, int pid) const {
    if (hello.wire_version != kWireVersion) {
      return fmt::format("wire version differs: rank {} has {}, rank {} has {}", request_.rank,
                         kWireVersion, hello.rank, hello.wire_version);
    }
    if (hello.size != request_.size) {
      return fmt::format("size differs: rank {} has {}, rank {} has {}", request_.rank,
                         request_.size, hello.rank, hello.size);
    }
    if (!request_.key.given() && hello.keyed != 0) {
      return fmt::format("rank {} has a job key, rank {} has none", hello.rank, request_.rank);
    }
    const auto expected = others();
    if (std::find(expected.begin(), expected.end(), hello.rank) == expected.end()) {
      return fmt::format("rank {} joined, expected {}", hello.rank, fmt::join(expected, ", "));
    }
    if (has_arrived(hello.rank)) {
      return fmt::format("rank {} joined twice: processes {} and {} say so (job '{}')", hello.rank,
                         peers_[static_cast<std::size_t>(hello.rank)].pid, pid, request_.job);
    }
    for (int r = 0; r < request_.size; ++r) {
      const int other = r == request_.rank ? getpid() : peers_[static_cast<std::size_t>(r)].pid;
      if (other != hello.pid) continue;
      return fmt::format("ranks {} and {} are in one process: use a ThreadGroup for all ranks", r,
                         hello.rank);
    }
    return difference(request_.fields, request_.rank, hello.fields, hello.rank);
  }

  // Lets those join that are only just arriving: what went wrong will be told to them too.
  void hear_others(const Socket& listener) {
    const SpareFiles spare;
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
      if (peer.socket.valid()) (void)send_refusal(peer.socket, text);
    }
    for (const Socket& socket : refused_) (void)send_refusal(socket, text);
  }

  // Every rank gets the descriptors of all others, in rank order.
  void hand_out(std::uint64_t group) {
    for (int r : others()) {
      std::vector<int> fds = own_fds_;
      for (int q : others()) {
        const std::vector<int>& theirs = peers_[static_cast<std::size_t>(q)].fds;
        if (q != r) fds.insert(fds.end(), theirs.begin(), theirs.end());
      }
      Order order = {};
      order.kind = Order::Kind::segments;
      order.first = group;
      const auto i = static_cast<std::size_t>(r);
      if (!peers_[i].socket.send(&order, sizeof(order), fds)) vanished(i);
    }
  }

  Segments attach_all() {
    Segments segments = absent_segments(request_);
    segments[static_cast<std::size_t>(request_.rank)] = own_;
    for (int r : others()) {
      std::vector<int>& fds = peers_[static_cast<std::size_t>(r)].fds;
      segments[static_cast<std::size_t>(r)] = attach_peer(request_, r, fds.data());
      fds.clear();
    }
    return segments;
  }

  [[noreturn]] void vanished(std::size_t rank) const {
    fail(fmt::format("{} {} during set-up of job '{}'", told(rank),
                     peers_[rank].socket.gone() ? "went away" : "did not answer", request_.job));
  }

  // What rank r sends is whether it can be probed, or why it cannot go on.
  bool answers_probe(std::size_t r, const Order& order) const {
    std::array<std::byte, sizeof(Regret)> answer = {};
    std::vector<int> none;
    const Socket& socket = peers_[r].socket;
    (void)socket.send(&order, sizeof(order));  // one that is gone may have said why
    const long got = socket.receive(answer.data(), answer.size(), none, request_.deadline);
    if (got < 0) vanished(r);
    if (const auto regret = regret_in(std::span(answer).first(static_cast<std::size_t>(got)))) {
      fail(fmt::format("{} cannot join: {}", told(r), regret->text));
    }
    std::uint32_t can = 0;
    std::memcpy(&can, answer.data(), sizeof(can));
    return can != 0;
  }

  double probe_all(const Segments& segments) {
    double slowest = 0;
    bool all_measured = true;
    const int cpu = first_cpu();
    for (int rank : others()) {
      const auto r = static_cast<std::size_t>(rank);
      const std::uint64_t first = 1 + r * 1'000'000;
      Order order = {};
      order.kind = Order::Kind::probe;
      order.cpu = cpu;
      order.first = first;
      if (answers_probe(r, order) && cpu >= 0) {
        const PinnedTo pinned(cpu);
        peers_[r].one_way_ns =
            ping_pong_ns(own_->data() + kProbeOffset, segments[r]->data() + kProbeOffset,
                         {.starter = true, .first = first});
      }
      slowest = std::max(slowest, peers_[r].one_way_ns);
      all_measured = all_measured && peers_[r].one_way_ns > 0;
    }
    for (int r : others()) {
      const Peer& peer = peers_[static_cast<std::size_t>(r)];
      Order order = {};
      order.kind = Order::Kind::go;
      order.one_way_ns = peer.one_way_ns;
      (void)peer.socket.send(&order, sizeof(order));  // a death now shows in its life lock
    }
    return all_measured ? slowest : 0;
  }

  const JoinRequest& request_;
  std::shared_ptr<Segment> own_;
  std::vector<int> own_fds_ = descriptors_of(*own_);
  std::vector<Peer> peers_;
  std::vector<Socket> refused_;
  int strangers_ = 0;
  std::size_t refused_missing_ = 0;  // of these, those whose rank has not arrived otherwise
};

// The other ranks' side.
class Guest {
 public:
  Guest(const JoinRequest& request, std::shared_ptr<Segment> own)
      : request_(request), own_(std::move(own)) {}

  Meeting run() {
    try {
      return join();
    } catch (const Error& error) {
      if (refused_) throw;
      if (socket_.valid()) {
        (void)send_regret(socket_, request_, error.what());
      } else if (host_ == 0) {
        decline_processes(request_, error.what());
      }
      throw;
    }
  }

 private:
  Meeting join() {
    std::vector<int> fds;
    const CloseAll not_attached{fds};
    Order order = {};
    while (!introduce() || !receive(order, fds)) {
      // The host of an earlier set-up closed its socket under us: try again until the deadline.
      if (std::chrono::steady_clock::now() >= request_.deadline) {
        no_answer();
      }
    }
    Meeting meeting{.segments = attach(order, fds), .group = order.first, .probe = {}};
    const std::size_t attached = fds.size();
    // One probe at most, and no more descriptors (`fds` are closed): the host could go on for ever.
    for (bool probed = false;; probed = true) {
      if (!receive(order, fds)) no_answer();
      if (order.kind == Order::Kind::go) break;
      if (order.kind != Order::Kind::probe || probed || fds.size() != attached) {
        fail(fmt::format("rank {} sent an unexpected message", request_.members.front()));
      }
      answer_probe(order, meeting.segments);
      meeting.probe.host_cpu = order.cpu;
    }
    meeting.probe.one_way_ns = order.one_way_ns;
    return meeting;
  }

  [[noreturn]] void no_answer() const {
    if (host_ == 0) {
      fail(fmt::format("rank {}: timeout: rank {} did not arrive for {}", request_.rank,
                       request_.members.front(), job_text(request_)));
    }
    fail(fmt::format("rank {}: rank {} (process {}) {} during set-up of {}", request_.rank,
                     request_.members.front(), host_,
                     !socket_.valid() || socket_.gone() ? "went away" : "did not answer",
                     job_text(request_)));
  }

  bool introduce() {
    socket_ = Socket::connect(socket_name(request_), request_.deadline);
    if (!socket_.valid()) return false;
    host_ = socket_.peer_pid();
    if (!socket_.same_user()) {
      refused_ = true;  // and told nothing
      fail("the rendezvous is held by another user");
    }
    Hello hello = {};
    hello.magic = kMagic;
    hello.wire_version = kWireVersion;
    hello.rank = request_.rank;
    hello.size = request_.size;
    hello.pid = getpid();
    for (std::size_t i = 0; i < kMaxAgreedFields; ++i) hello.fields[i] = request_.fields[i].value;
    if (!request_.key.given()) return socket_.send(&hello, sizeof(hello), descriptors_of(*own_));
    hello.keyed = 1;
    hello.nonce = fresh_nonce();
    Order challenge = {};
    std::vector<int> none;
    const CloseAll not_wanted{none};
    if (!socket_.send(&hello, sizeof(hello)) || !receive(challenge, none)) return false;
    refused_ = true;  // until it has proved itself it is told nothing
    answer_challenge(request_, socket_, challenge, hello, descriptors_of(*own_));
    refused_ = false;
    return true;
  }

  bool receive(Order& order, std::vector<int>& fds) {
    // The host waits for the last rank until its own deadline and then says so: leave it time to.
    const auto patience = request_.deadline + std::chrono::seconds(2);
    if (socket_.receive(&order, sizeof(order), fds, patience) != sizeof(order)) return false;
    if (order.kind == Order::Kind::refuse) {
      order.text[sizeof(order.text) - 1] = 0;
      refused_ = true;
      fail(fmt::format("rank {}: refused by rank {}: {}", request_.rank, request_.members.front(),
                       order.text));
    }
    return true;
  }

  Segments attach(const Order& order, std::vector<int>& fds) {
    const std::size_t members = request_.members.size();
    const std::size_t each = descriptors_of(*own_).size();
    if (order.kind != Order::Kind::segments || fds.size() != (members - 1) * each) {
      fail(fmt::format("rank {} sent an unexpected message", request_.members.front()));
    }
    Segments segments = absent_segments(request_);
    int* next = fds.data();
    for (int r : request_.members) {
      const bool own = r == request_.rank;
      segments[static_cast<std::size_t>(r)] = own ? own_ : attach_peer(request_, r, next);
      if (!own) next += each;
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
    const auto host = static_cast<std::size_t>(request_.members.front());  // which measures
    (void)ping_pong_ns(own_->data() + kProbeOffset, segments[host]->data() + kProbeOffset,
                       {.starter = false, .first = order.first});
  }

  const JoinRequest& request_;
  std::shared_ptr<Segment> own_;
  Socket socket_;
  int host_ = 0;  // the first member's process, once it was seen
  bool refused_ = false;
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

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) fail("getrandom failed");
  return number;
}

Meeting join_processes(const JoinRequest& request, std::shared_ptr<Segment> own) {
  const JoinRequest wanted = with_members(request);
  if (wanted.members.size() == 1) {
    Meeting alone{.segments = absent_segments(wanted), .group = random_number(), .probe = {}};
    alone.segments[static_cast<std::size_t>(wanted.rank)] = std::move(own);
    return alone;
  }
  const OnlyOne set_up(wanted);
  if (wanted.rank == wanted.members.front()) return Host(wanted, std::move(own)).run();
  return Guest(wanted, std::move(own)).run();
}

}  // namespace ubep
