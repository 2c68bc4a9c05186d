#include "fabric/ucx/transport.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "base/math.hpp"
#include "fabric/shm/rendezvous.hpp"
#include "fabric/ucx/library.hpp"
#include "memory/word.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr unsigned kMessageId = 0;
constexpr std::uint64_t kShort = 8 * 1024;       // pieces up to here are copied,
constexpr std::size_t kMostWaiting = 32 * 1024;  //   and so many bytes of them wait
constexpr std::uint64_t kMostLong = 128 * 1024;  // of one message without a copy

enum class Kind : std::uint32_t { bytes, word, get, got, ping, pong };

// Before each piece. A message's header is that of its only piece, or one of kind `pieces` with
// none: then the data holds pieces with headers of their own, each rounded up to 8 bytes.
struct Piece {
  Kind kind;
  std::uint32_t window;
  std::uint64_t offset;  // got: the fetch
  std::uint64_t bytes;   // get: how many are asked for; word: the value
};

struct Header {
  std::uint64_t key;  // the receiver's: ports are used again, and anybody may connect to them
  std::uint64_t rank;
  std::uint64_t number;  // of the messages of this rank to that one, from 0
  std::uint64_t pieces;  // 0: one, without a header of its own in the data
  Piece piece;
};

[[noreturn]] void fail(const char* what, ucs_status_t status) {
  throw Error(ErrorCode::setup,
              fmt::format("UCX: {} failed: {}", what, ucp_library().status_string(status)));
}

void check(const char* what, ucs_status_t status) {
  if (status != UCS_OK) fail(what, status);
}

// Sent or waiting to be.
struct Message {
  Header header = {};
  std::vector<std::byte> data;
};

void append(std::vector<std::byte>& to, const void* data, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  to.insert(to.end(), first, first + bytes);
  to.resize(round_up(to.size(), 8));
}

// Short ones hold words that other lanes may be looking at.
void store(std::byte* to, std::span<const std::byte> bytes) {
  if (bytes.size() > kLineBytes || (reinterpret_cast<std::uintptr_t>(to) | bytes.size()) % 8 != 0) {
    std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    // publishes: nothing; the word behind these does.
    SharedWord(to + i).store_release(word);
  }
}

struct Fetch {
  std::span<std::byte> into;
  int* done;
};

struct Peer {
  ucp_ep_h endpoint = nullptr;  // null: it takes no part
  std::uint64_t key = 0;
  std::vector<Window> windows;
  const char* failure = nullptr;
  std::unique_ptr<Message> waiting;
  std::uint64_t sent = 0;      // messages
  std::uint64_t received = 0;  // likewise, taken in
  std::map<std::uint64_t, std::pair<Header, std::vector<std::byte>>> early;
  std::map<std::uint64_t, Fetch> fetches;
  std::uint64_t next_fetch = 0;
  std::uint64_t puts = 0;      // pieces
  std::uint64_t asked = 0;     // of them, by the latest ping
  std::uint64_t answered = 0;  // and by the latest pong
  std::vector<Piece> answers;  // that are still to be given

  bool can_be_reached() const { return endpoint != nullptr && failure == nullptr; }
};

}  // namespace

struct UcxTransport::Impl {
  const UcpLibrary& ucp = ucp_library();
  int rank = 0;
  std::uint64_t key = random_number();
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  std::vector<Peer> peers;
  std::uint64_t sent_bytes = 0;

  ~Impl();
  void open();
  Peer& peer(int r) { return peers[static_cast<std::size_t>(r)]; }
  void add(Peer& to, const Piece& piece, std::span<const std::byte> bytes);
  void post(Peer& to);
  void send(Peer& to, std::unique_ptr<Message> message, std::span<const std::byte> data);
  void lose(Peer& peer, const char* why);
  void hear(const Header& header, std::span<const std::byte> data);
  void take_in(Peer& from, const Header& header, std::span<const std::byte> data);
  bool take_piece(Peer& from, const Piece& piece, std::span<const std::byte> data);
  int answer();
};

namespace {

void on_sent(void* request, ucs_status_t, void* message) {
  delete static_cast<Message*>(message);
  ucp_library().request_free(request);
}

void on_failure(void* peer, ucp_ep_h, ucs_status_t status) {
  static_cast<Peer*>(peer)->failure = ucp_library().status_string(status);
}

}  // namespace

void UcxTransport::Impl::open() {
  ucp_config_t* config = nullptr;
  check("reading its configuration", ucp.config_read(nullptr, nullptr, &config));
  // Ranks of this host have shared memory of their own. A user's choice stands.
  if (std::getenv("UCX_TLS") == nullptr) (void)ucp.config_modify(config, "TLS", "^shm,self");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_AM;
  params.estimated_num_eps = peers.size();
  const ucs_status_t status =
      ucp.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucp.config_release(config);
  check("its set-up", status);
  ucp_worker_params_t of_worker = {};
  of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  of_worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  check("making a worker", ucp.worker_create(context, &of_worker, &worker));
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = this;
  handler.cb = [](void* self, const void* header, std::size_t header_bytes, void* data,
                  std::size_t bytes, const ucp_am_recv_param_t* param) {
    // A rendezvous, or another kind of header: nobody of ours sends that.
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || header_bytes != sizeof(Header)) {
      return UCS_OK;
    }
    Header copy;
    std::memcpy(&copy, header, sizeof(copy));
    static_cast<Impl*>(self)->hear(copy, {static_cast<const std::byte*>(data), bytes});
    return UCS_OK;
  };
  check("taking messages", ucp.worker_set_am_recv_handler(worker, &handler));
}

UcxTransport::Impl::~Impl() {
  for (Peer& peer : peers) {
    if (peer.endpoint == nullptr) continue;
    ucp_request_param_t force = {};
    force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    force.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucp.ep_close(peer.endpoint, &force);
    if (!UCS_PTR_IS_PTR(closing)) continue;
    while (ucp.request_check_status(closing) == UCS_INPROGRESS) (void)ucp.worker_progress(worker);
    ucp.request_free(closing);
  }
  if (worker != nullptr) ucp.worker_destroy(worker);
  if (context != nullptr) ucp.cleanup(context);
}

UcxTransport::UcxTransport(int rank, int size) : impl_(std::make_unique<Impl>()) {
  impl_->rank = rank;
  impl_->peers.resize(static_cast<std::size_t>(size));
  impl_->open();
}

UcxTransport::~UcxTransport() = default;

std::string UcxTransport::describe() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  check("asking for the own address",
        impl_->ucp.worker_get_address(impl_->worker, &address, &bytes));
  std::string description(reinterpret_cast<const char*>(&impl_->key), sizeof(impl_->key));
  description.append(reinterpret_cast<const char*>(address), bytes);
  impl_->ucp.worker_release_address(impl_->worker, address);
  return description;
}

void UcxTransport::connect(int rank, const std::string& description, std::vector<Window> windows) {
  Peer& peer = impl_->peer(rank);
  peer.windows = std::move(windows);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  const bool is_whole = description.size() > sizeof(peer.key);
  if (is_whole) std::memcpy(&peer.key, description.data(), sizeof(peer.key));
  const std::string address = is_whole ? description.substr(sizeof(peer.key)) : std::string();
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_failure, .arg = &peer};
  const ucs_status_t status = is_whole
                                  ? impl_->ucp.ep_create(impl_->worker, &params, &peer.endpoint)
                                  : UCS_ERR_INVALID_ADDR;
  if (status == UCS_OK) return;
  throw Error(ErrorCode::setup,
              fmt::format("UCX cannot reach rank {}: {}", rank, impl_->ucp.status_string(status)));
}

void UcxTransport::Impl::lose(Peer& peer, const char* why) {
  if (peer.failure == nullptr) peer.failure = why;
}

void UcxTransport::Impl::add(Peer& to, const Piece& piece, std::span<const std::byte> bytes) {
  if (!to.can_be_reached()) return;
  if (to.waiting == nullptr) to.waiting = std::make_unique<Message>();
  Message& message = *to.waiting;
  ++message.header.pieces;
  if (piece.kind == Kind::bytes || piece.kind == Kind::word) ++to.puts;
  append(message.data, &piece, sizeof(piece));
  if (!bytes.empty()) append(message.data, bytes.data(), bytes.size());
  if (message.data.size() >= kMostWaiting) post(to);
}

void UcxTransport::Impl::post(Peer& to) {
  if (to.waiting == nullptr) return;
  const std::span<const std::byte> data = to.waiting->data;
  send(to, std::move(to.waiting), data);
}

// The message stays until it is sent, and so must `data`.
void UcxTransport::Impl::send(Peer& to, std::unique_ptr<Message> message,
                              std::span<const std::byte> data) {
  if (!to.can_be_reached()) return;
  Header& header = message->header;
  header.key = to.key;
  header.rank = static_cast<std::uint64_t>(rank);
  header.number = to.sent++;
  sent_bytes += sizeof(header) + data.size();
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = message.get();
  const ucs_status_ptr_t request = ucp.am_send(to.endpoint, kMessageId, &header, sizeof(header),
                                               data.data(), data.size(), &param);
  if (UCS_PTR_IS_PTR(request)) (void)message.release();  // on_sent() has it
  if (UCS_PTR_IS_ERR(request)) lose(to, ucp.status_string(UCS_PTR_STATUS(request)));
}

void UcxTransport::put(const Place& to, std::span<const std::byte> from) {
  Peer& peer = impl_->peer(to.rank);
  std::uint64_t offset = to.offset;
  const auto window = static_cast<std::uint32_t>(to.window);
  if (from.size() <= kShort) {
    if (!from.empty()) impl_->add(peer, {Kind::bytes, window, offset, from.size()}, from);
    return;
  }
  impl_->post(peer);
  while (!from.empty()) {
    const auto part = from.first(std::min<std::size_t>(from.size(), kMostLong));
    auto message = std::make_unique<Message>();
    message->header.piece = {Kind::bytes, window, offset, part.size()};
    ++peer.puts;
    impl_->send(peer, std::move(message), part);
    offset += part.size();
    from = from.subspan(part.size());
  }
}

void UcxTransport::put_word(const Place& to, std::uint64_t value) {
  impl_->add(impl_->peer(to.rank),
             {Kind::word, static_cast<std::uint32_t>(to.window), to.offset, value}, {});
}

void UcxTransport::get(const Place& from, std::span<std::byte> into, int* done) {
  Peer& peer = impl_->peer(from.rank);
  *done = peer.can_be_reached() ? 0 : 2;
  if (*done != 0) return;
  const std::uint64_t fetch = peer.next_fetch++;
  peer.fetches[fetch] = {into, done};
  std::array<std::byte, sizeof(fetch)> number;
  std::memcpy(number.data(), &fetch, sizeof(fetch));
  impl_->add(peer, {Kind::get, static_cast<std::uint32_t>(from.window), from.offset, into.size()},
             number);
}

void UcxTransport::post() {
  for (Peer& peer : impl_->peers) impl_->post(peer);
}

// From within progress(): nothing is sent from here.
void UcxTransport::Impl::hear(const Header& header, std::span<const std::byte> data) {
  if (header.key != key || header.rank >= peers.size()) return;
  Peer& from = peers[header.rank];
  if (!from.can_be_reached()) return;
  if (header.number != from.received) {  // UCX promises no order, though it keeps one
    if (header.number > from.received) {
      from.early.try_emplace(header.number, header,
                             std::vector<std::byte>(data.begin(), data.end()));
    }
    return;
  }
  take_in(from, header, data);
  for (auto next = from.early.begin(); next != from.early.end() && next->first == from.received;
       next = from.early.begin()) {
    const auto message = std::move(next->second);
    from.early.erase(next);
    take_in(from, message.first, message.second);
  }
}

void UcxTransport::Impl::take_in(Peer& from, const Header& header,
                                 std::span<const std::byte> data) {
  ++from.received;
  if (header.pieces == 0) {
    if (!take_piece(from, header.piece, data)) lose(from, "it sent what no rank sends");
    return;
  }
  for (std::uint64_t i = 0; i < header.pieces; ++i) {
    Piece piece;
    bool sound = data.size() >= sizeof(piece);
    if (sound) {
      std::memcpy(&piece, data.data(), sizeof(piece));
      data = data.subspan(sizeof(piece));
      const std::uint64_t bytes = piece.kind == Kind::bytes ? piece.bytes
                                  : piece.kind == Kind::get ? sizeof(std::uint64_t)
                                                            : 0;
      sound = bytes <= data.size() && take_piece(from, piece, data.first(bytes));
      if (sound) data = data.subspan(std::min<std::size_t>(round_up(bytes, 8), data.size()));
    }
    if (!sound) return lose(from, "it sent what no rank sends");
  }
}

// Whether it is as it should be: nothing goes outside of this peer's windows.
bool UcxTransport::Impl::take_piece(Peer& from, const Piece& piece,
                                    std::span<const std::byte> data) {
  const auto place = [&](std::uint64_t bytes, bool writes) -> std::byte* {
    if (piece.window >= from.windows.size()) return nullptr;
    const Window& window = from.windows[piece.window];
    const bool inside = piece.offset <= window.bytes && bytes <= window.bytes - piece.offset;
    return inside && (window.writable || !writes) ? window.data + piece.offset : nullptr;
  };
  switch (piece.kind) {
    case Kind::bytes: {
      std::byte* to = place(data.size(), true);
      if (to == nullptr || data.size() != piece.bytes) return false;
      store(to, data);
      return true;
    }
    case Kind::word: {
      std::byte* to = place(sizeof(std::uint64_t), true);
      if (to == nullptr || piece.offset % 8 != 0) return false;
      // publishes: all pieces before it, to load_flag() of this rank's lanes.
      SharedWord(to).store_release(piece.bytes);
      return true;
    }
    case Kind::get: {
      if (data.size() != sizeof(std::uint64_t) || place(piece.bytes, false) == nullptr)
        return false;
      Piece answer = piece;
      answer.kind = Kind::got;
      from.answers.push_back(answer);
      Piece fetch = {};
      std::memcpy(&fetch.offset, data.data(), sizeof(fetch.offset));
      from.answers.push_back(fetch);
      return true;
    }
    case Kind::got: {
      const auto fetch = from.fetches.find(piece.offset);
      if (fetch == from.fetches.end() || fetch->second.into.size() != data.size()) return false;
      std::memcpy(fetch->second.into.data(), data.data(), data.size());
      *fetch->second.done = 1;
      from.fetches.erase(fetch);
      return true;
    }
    case Kind::ping:
      from.answers.push_back({Kind::pong, 0, piece.offset, 0});
      return true;
    case Kind::pong:
      from.answered = std::max(from.answered, piece.offset);
      return true;
  }
  return false;
}

int UcxTransport::Impl::answer() {
  int given = 0;
  for (Peer& peer : peers) {
    for (std::size_t i = 0; i < peer.answers.size(); ++i, ++given) {
      const Piece answer = peer.answers[i];
      if (answer.kind == Kind::pong) {
        add(peer, answer, {});
        continue;
      }
      const std::uint64_t fetch = peer.answers[++i].offset;
      post(peer);
      auto message = std::make_unique<Message>();
      message->header.piece = {Kind::got, 0, fetch, answer.bytes};
      const Window& window = peer.windows[answer.window];
      send(peer, std::move(message), {window.data + answer.offset, answer.bytes});
    }
    if (!peer.answers.empty()) post(peer);
    peer.answers.clear();
    if (peer.failure == nullptr) continue;
    for (auto& [number, fetch] : peer.fetches) *fetch.done = 2;
    peer.fetches.clear();
  }
  return given;
}

int UcxTransport::progress() {
  const auto moved = static_cast<int>(impl_->ucp.worker_progress(impl_->worker));
  return moved + impl_->answer();
}

bool UcxTransport::flushed(int rank) {
  Peer& peer = impl_->peer(rank);
  if (!peer.can_be_reached() || peer.answered >= peer.puts) return true;
  if (peer.asked < peer.puts) {
    peer.asked = peer.puts;
    impl_->add(peer, {Kind::ping, 0, peer.puts, 0}, {});
  }
  impl_->post(peer);
  return false;
}

void UcxTransport::finish(Deadline deadline) {
  constexpr timespec kNap = {0, 50'000};
  for (int rank = 0; rank < static_cast<int>(impl_->peers.size()); ++rank) {
    while (!flushed(rank)) {
      if (progress() != 0) continue;
      if (std::chrono::steady_clock::now() >= deadline) return;
      nanosleep(&kNap, nullptr);
    }
  }
}

const char* UcxTransport::failure(int rank) const { return impl_->peer(rank).failure; }

std::uint64_t UcxTransport::bytes() const { return impl_->sent_bytes; }

std::string UcxTransport::version() { return ucp_library().version_string(); }

}  // namespace ubep
