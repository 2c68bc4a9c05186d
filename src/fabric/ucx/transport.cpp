#include "fabric/ucx/transport.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <utility>

#include "fabric/shm/rendezvous.hpp"
#include "fabric/ucx/library.hpp"
#include "memory/word.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr unsigned kMessageId = 1;
// Of a message: with its headers it fits into one piece of TCP's and InfiniBand's (8 KiB).
constexpr std::size_t kMostPiece = 8000;

enum class Kind : std::uint32_t {
  put,      // bytes for a window
  fetch,    // wants `bytes` of a window
  fetched,  // a piece of them
  ask,      // wants to know when all before it has arrived
  answer,   // to that: `offset` is the number of the question
};

// `key` is the receiver's: ports are used again, and anybody may connect to them.
struct Header {
  std::uint64_t key = 0;
  Kind kind = Kind::put;
  std::uint32_t source = 0;
  std::uint64_t number = 0;  // of this message among all from here to there
  std::uint64_t window = 0;  // fetch, fetched: in the upper half the number of the fetch
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// A message under way, and the bytes that are its own.
struct Parcel {
  Header header;
  std::array<std::byte, kMostCopied> bytes;
  std::vector<Parcel*>* free = nullptr;
};

// A message that came before an earlier one.
struct Early {
  Header header;
  std::vector<std::byte> bytes;
};

struct Fetch {
  std::uint32_t number = 0;
  std::span<std::byte> to;
  std::uint64_t left = 0;
  int* done = nullptr;
};

struct Peer {
  ucp_ep_h endpoint = nullptr;  // null: it takes no part
  ucs_status_t status = UCS_OK;
  std::uint64_t key = 0;
  std::uint64_t sent = 0;      // messages
  std::uint64_t received = 0;  // messages, all in order
  std::uint64_t last_put = 0;  // `sent` behind it
  std::uint64_t asked = 0;     // `sent` behind the latest question
  std::uint64_t answered = 0;
  std::map<std::uint64_t, Early> early;
  std::list<Fetch> fetches;
  std::vector<Header> to_answer;  // ask and fetch

  bool can_be_reached() const { return endpoint != nullptr && status == UCS_OK; }
};

[[noreturn]] void fail(const char* what, ucs_status_t status) {
  throw Error(ErrorCode::setup,
              fmt::format("UCX: {} failed: {}", what, ucp_library().status_string(status)));
}

void check(const char* what, ucs_status_t status) {
  if (status != UCS_OK) fail(what, status);
}

void lose(Peer& peer, ucs_status_t status) {
  if (peer.status == UCS_OK) peer.status = status;
  for (const Fetch& fetch : peer.fetches) *fetch.done = 2;
  peer.fetches.clear();
}

// Of an endpoint, when the other side is gone.
void on_failure(void* peer, ucp_ep_h, ucs_status_t status) {
  lose(*static_cast<Peer*>(peer), status);
}

void on_sent(void* request, ucs_status_t, void* parcel) {
  auto* sent = static_cast<Parcel*>(parcel);
  sent->free->push_back(sent);
  ucp_library().request_free(request);
}

// Words and what is told with them, which other lanes may be looking at.
bool holds_words(const std::byte* at, std::size_t bytes) {
  return bytes <= kMostCopied && bytes % 8 == 0 && reinterpret_cast<std::uintptr_t>(at) % 8 == 0;
}

void store(std::byte* to, std::span<const std::byte> bytes) {
  if (!holds_words(to, bytes.size())) {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    // publishes: all that was stored here before, to lanes that see the word.
    SharedWord(to + i).store_release(word);
  }
}

}  // namespace

struct UcxTransport::Impl {
  const UcpLibrary& ucp = ucp_library();
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  std::uint32_t rank = 0;
  std::uint64_t key = random_number();
  std::vector<Peer> peers;
  std::vector<Window> windows;
  std::deque<Parcel> parcels;  // their addresses stay
  std::vector<Parcel*> free_parcels;
  std::uint32_t fetches = 0;
  std::uint64_t moved = 0;

  ~Impl();
  void open();
  void make_worker();
  Peer& peer(int r) { return peers[static_cast<std::size_t>(r)]; }
  bool is_inside(std::uint64_t window, std::uint64_t offset, std::uint64_t bytes) const;
  void send(Peer& to, Header header, std::span<const std::byte> bytes, bool copies);
  void receive(const Header& header, std::span<const std::byte> bytes);
  void take(Peer& from, const Header& header, std::span<const std::byte> bytes);
  void take_fetched(Peer& from, const Header& header, std::span<const std::byte> bytes);
  int answer_all();
  void serve(Peer& to, const Header& wanted);
};

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
}

void UcxTransport::Impl::make_worker() {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  check("making a worker", ucp.worker_create(context, &params, &worker));
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = [](void* impl, const void* head, std::size_t head_bytes, void* data,
                  std::size_t bytes, const ucp_am_recv_param_t* param) {
    Header header;
    const bool is_whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    if (head_bytes != sizeof(header) || !is_whole) {  // nobody of ours speaks like this
      return UCS_OK;
    }
    std::memcpy(&header, head, sizeof(header));
    static_cast<Impl*>(impl)->receive(header, {static_cast<const std::byte*>(data), bytes});
    return UCS_OK;
  };
  handler.arg = this;
  check("setting its handler", ucp.set_am_recv_handler(worker, &handler));
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
  impl_->rank = static_cast<std::uint32_t>(rank);
  impl_->peers.resize(static_cast<std::size_t>(size));
  impl_->open();
  impl_->make_worker();
}

UcxTransport::~UcxTransport() = default;

std::string UcxTransport::describe(std::span<const Window> windows) {
  const UcpLibrary& ucp = impl_->ucp;
  impl_->windows.assign(windows.begin(), windows.end());
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  check("asking for the own address", ucp.worker_get_address(impl_->worker, &address, &bytes));
  std::string description(reinterpret_cast<const char*>(&impl_->key), sizeof(impl_->key));
  description.append(reinterpret_cast<const char*>(address), bytes);
  ucp.worker_release_address(impl_->worker, address);
  return description;
}

void UcxTransport::connect(int rank, const std::string& description) {
  const UcpLibrary& ucp = impl_->ucp;
  Peer& peer = impl_->peer(rank);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  const bool is_whole = description.size() > sizeof(peer.key);
  if (is_whole) std::memcpy(&peer.key, description.data(), sizeof(peer.key));
  const std::string address = is_whole ? description.substr(sizeof(peer.key)) : std::string();
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_failure, .arg = &peer};
  const ucs_status_t status = description.empty()
                                  ? UCS_ERR_INVALID_ADDR
                                  : ucp.ep_create(impl_->worker, &params, &peer.endpoint);
  if (status == UCS_OK) return;
  throw Error(ErrorCode::setup,
              fmt::format("UCX cannot reach rank {}: {}", rank, ucp.status_string(status)));
}

// ---- Out ----

// `bytes` stay as they are until the message has gone, or are copied (up to kMostCopied).
void UcxTransport::Impl::send(Peer& to, Header header, std::span<const std::byte> bytes,
                              bool copies) {
  if (!to.can_be_reached()) return;
  if (free_parcels.empty()) {
    parcels.emplace_back().free = &free_parcels;
    free_parcels.push_back(&parcels.back());
  }
  Parcel* parcel = free_parcels.back();
  free_parcels.pop_back();
  header.key = to.key;
  header.source = rank;
  header.number = to.sent++;
  parcel->header = header;
  if (copies) {
    std::copy(bytes.begin(), bytes.end(), parcel->bytes.begin());
    bytes = {parcel->bytes.data(), bytes.size()};
  }
  moved += bytes.size();
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = parcel;
  const ucs_status_ptr_t request = ucp.am_send(to.endpoint, kMessageId, &parcel->header,
                                               sizeof(Header), bytes.data(), bytes.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  free_parcels.push_back(parcel);
  if (UCS_PTR_IS_ERR(request)) lose(to, UCS_PTR_STATUS(request));
}

void UcxTransport::put(int rank, std::size_t window, std::uint64_t offset,
                       std::span<const std::byte> from) {
  Peer& peer = impl_->peer(rank);
  for (std::size_t i = 0; i < from.size(); i += kMostPiece) {
    impl_->send(peer, {.kind = Kind::put, .window = window, .offset = offset + i},
                from.subspan(i, std::min(kMostPiece, from.size() - i)), false);
  }
  peer.last_put = peer.sent;
}

void UcxTransport::put_copy(int rank, std::size_t window, std::uint64_t offset,
                            std::span<const std::byte> from) {
  Peer& peer = impl_->peer(rank);
  impl_->send(peer, {.kind = Kind::put, .window = window, .offset = offset}, from, true);
  peer.last_put = peer.sent;
}

void UcxTransport::get(int rank, std::size_t window, std::uint64_t offset, std::span<std::byte> to,
                       int* done) {
  Peer& peer = impl_->peer(rank);
  *done = peer.can_be_reached() ? 0 : 2;
  if (*done != 0) return;
  const std::uint32_t number = impl_->fetches++;
  peer.fetches.push_back({.number = number, .to = to, .left = to.size(), .done = done});
  impl_->send(peer,
              {.kind = Kind::fetch,
               .window = window | std::uint64_t{number} << 32,
               .offset = offset,
               .bytes = to.size()},
              {}, true);
}

bool UcxTransport::flushed(int rank) {
  Peer& peer = impl_->peer(rank);
  if (!peer.can_be_reached() || peer.answered >= peer.last_put) return true;
  if (peer.asked >= peer.last_put) return false;
  impl_->send(peer, {.kind = Kind::ask}, {}, true);
  peer.asked = peer.sent;
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

// ---- In ----

int UcxTransport::progress() {
  const int moved = static_cast<int>(impl_->ucp.worker_progress(impl_->worker));
  return moved + impl_->answer_all();
}

bool UcxTransport::Impl::is_inside(std::uint64_t window, std::uint64_t offset,
                                   std::uint64_t bytes) const {
  if (window >= windows.size()) return false;
  const std::uint64_t end = windows[window].bytes;
  return bytes <= end && offset <= end - bytes;
}

// Whatever order UCX delivers in: one after the other. Nothing comes of a rank that is lost.
void UcxTransport::Impl::receive(const Header& header, std::span<const std::byte> bytes) {
  if (header.key != key || header.source >= peers.size() || header.source == rank) return;
  Peer& from = peers[header.source];
  if (from.status != UCS_OK || header.number < from.received) return;
  if (header.number > from.received) {
    from.early.try_emplace(header.number, Early{header, {bytes.begin(), bytes.end()}});
    return;
  }
  take(from, header, bytes);
  while (!from.early.empty() && from.early.begin()->first == from.received) {
    const auto next = from.early.extract(from.early.begin());
    take(from, next.mapped().header, next.mapped().bytes);
  }
}

void UcxTransport::Impl::take(Peer& from, const Header& header, std::span<const std::byte> bytes) {
  ++from.received;
  switch (header.kind) {
    case Kind::put:
      if (is_inside(header.window, header.offset, bytes.size())) {
        return store(windows[header.window].data + header.offset, bytes);
      }
      break;
    case Kind::fetch:
      if (is_inside(header.window & 0xFFFFFFFF, header.offset, header.bytes)) {
        return from.to_answer.push_back(header);
      }
      break;
    case Kind::fetched:
      return take_fetched(from, header, bytes);
    case Kind::ask:
      return from.to_answer.push_back(header);
    case Kind::answer:
      from.answered = std::max(from.answered, header.offset);
      return;
  }
  lose(from, UCS_ERR_INVALID_PARAM);  // it speaks of memory that is not there
}

void UcxTransport::Impl::take_fetched(Peer& from, const Header& header,
                                      std::span<const std::byte> bytes) {
  const auto number = static_cast<std::uint32_t>(header.window >> 32);
  const auto fetch = std::find_if(from.fetches.begin(), from.fetches.end(),
                                  [&](const Fetch& f) { return f.number == number; });
  const bool fits = fetch != from.fetches.end() && bytes.size() <= fetch->left &&
                    header.offset <= fetch->to.size() - bytes.size();
  if (!fits) return lose(from, UCS_ERR_INVALID_PARAM);
  std::copy(bytes.begin(), bytes.end(),
            fetch->to.begin() + static_cast<std::ptrdiff_t>(header.offset));
  fetch->left -= bytes.size();
  if (fetch->left != 0) return;
  *fetch->done = 1;
  from.fetches.erase(fetch);
}

// Not from within UCX's own calls.
int UcxTransport::Impl::answer_all() {
  int answered = 0;
  for (Peer& peer : peers) {
    for (const Header& header : std::exchange(peer.to_answer, {})) {
      ++answered;
      header.kind == Kind::fetch
          ? serve(peer, header)
          : send(peer, {.kind = Kind::answer, .offset = header.number + 1}, {}, true);
    }
  }
  return answered;
}

void UcxTransport::Impl::serve(Peer& to, const Header& wanted) {
  const std::byte* from = windows[wanted.window & 0xFFFFFFFF].data + wanted.offset;
  for (std::uint64_t i = 0; i < wanted.bytes; i += kMostPiece) {
    send(to, {.kind = Kind::fetched, .window = wanted.window, .offset = i},
         {from + i, std::min<std::uint64_t>(kMostPiece, wanted.bytes - i)}, false);
  }
}

const char* UcxTransport::failure(int rank) const {
  const Peer& peer = impl_->peer(rank);
  return peer.status == UCS_OK ? nullptr : impl_->ucp.status_string(peer.status);
}

std::uint64_t UcxTransport::bytes() const { return impl_->moved; }

std::string UcxTransport::version() { return ucp_library().version_string(); }

}  // namespace ubep
