#include "fabric/ucx/transport.hpp"

#include <fmt/format.h>
#include <time.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "fabric/ucx/library.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

[[noreturn]] void fail(const char* what, ucs_status_t status) {
  throw Error(ErrorCode::setup, fmt::format("UCX: {} failed: {}", what,
                                            ucp_library().status_string(status)));
}

void check(const char* what, ucs_status_t status) {
  if (status != UCS_OK) fail(what, status);
}

void append(std::string& to, const void* data, std::size_t bytes) {
  to.append(static_cast<const char*>(data), bytes);
}

template <class T>
void append_value(std::string& to, T value) {
  append(to, &value, sizeof(value));
}

// Takes parts off a description, which came over the network.
class Parts {
 public:
  explicit Parts(const std::string& text) : text_(text) {}

  template <class T>
  T value() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)), sizeof(T));
    return value;
  }
  const char* bytes(std::size_t count) {
    if (count > text_.size() - next_) {
      throw Error(ErrorCode::setup, "UCX: a rank's description is cut off");
    }
    return text_.data() + std::exchange(next_, next_ + count);
  }

 private:
  const std::string& text_;
  std::size_t next_ = 0;
};

struct RemoteWindow {
  std::uint64_t address = 0;
  ucp_rkey_h key = nullptr;
};

struct Peer {
  ucp_ep_h endpoint = nullptr;
  std::vector<RemoteWindow> windows;
  ucs_status_t status = UCS_OK;
  ucs_status_ptr_t flush = nullptr;
  bool puts_since = false;  // the flush began
};

// Bytes that are under way from here, so that the caller's may change.
struct Parcel {
  alignas(64) std::array<std::byte, kMostCopied> bytes;
  bool is_free = true;
};

// Of an endpoint, when the other side is gone.
void on_failure(void* peer, ucp_ep_h, ucs_status_t status) {
  static_cast<Peer*>(peer)->status = status;
}

void on_put(void* request, ucs_status_t, void*) { ucp_library().request_free(request); }

void on_parcel(void* request, ucs_status_t, void* parcel) {
  static_cast<Parcel*>(parcel)->is_free = true;
  ucp_library().request_free(request);
}

void on_get(void* request, ucs_status_t status, void* done) {
  *static_cast<int*>(done) = status == UCS_OK ? 1 : 2;
  ucp_library().request_free(request);
}

}  // namespace

struct UcxTransport::Impl {
  const UcpLibrary& ucp = ucp_library();
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  std::vector<Peer> peers;
  std::vector<ucp_mem_h> memory;
  std::deque<Parcel> parcels;  // their addresses stay
  std::size_t next_parcel = 0;
  std::uint64_t moved = 0;

  ~Impl();
  void open();
  void make_worker();
  void add_window(const Window& window, std::string& description);
  Parcel& free_parcel();
  bool put(int rank, std::size_t window, std::uint64_t offset, std::span<const std::byte> from,
           const ucp_request_param_t& param);
  Peer& peer(int rank) { return peers[static_cast<std::size_t>(rank)]; }
};

void UcxTransport::Impl::open() {
  ucp_config_t* config = nullptr;
  check("reading its configuration", ucp.config_read(nullptr, nullptr, &config));
  // Ranks of this host have shared memory of their own. A user's choice stands.
  if (std::getenv("UCX_TLS") == nullptr) (void)ucp.config_modify(config, "TLS", "^shm,self");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_RMA;
  params.estimated_num_eps = peers.size();
  const ucs_status_t status = ucp.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucp.config_release(config);
  check("its set-up", status);
}

void UcxTransport::Impl::make_worker() {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  check("making a worker", ucp.worker_create(context, &params, &worker));
}

UcxTransport::Impl::~Impl() {
  for (Peer& peer : peers) {
    for (const RemoteWindow& window : peer.windows) {
      if (window.key != nullptr) ucp.rkey_destroy(window.key);
    }
    if (peer.flush != nullptr) ucp.request_free(peer.flush);
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
  for (ucp_mem_h handle : memory) (void)ucp.mem_unmap(context, handle);
  if (context != nullptr) ucp.cleanup(context);
}

UcxTransport::UcxTransport(int size) : impl_(std::make_unique<Impl>()) {
  impl_->peers.resize(static_cast<std::size_t>(size));
  impl_->open();
  impl_->make_worker();
}

UcxTransport::~UcxTransport() = default;

void UcxTransport::Impl::add_window(const Window& window, std::string& description) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.address = window.data;
  params.length = window.bytes;
  params.flags = UCP_MEM_MAP_NONBLOCK;  // does not touch what nobody has used
  ucp_mem_h handle = nullptr;
  check("registering memory", ucp.mem_map(context, &params, &handle));
  memory.push_back(handle);
  void* key = nullptr;
  std::size_t bytes = 0;
  check("describing memory", ucp.rkey_pack(context, handle, &key, &bytes));
  append_value(description, reinterpret_cast<std::uint64_t>(window.data));
  append_value(description, window.bytes);
  append_value(description, static_cast<std::uint64_t>(bytes));
  append(description, key, bytes);
  ucp.rkey_buffer_release(key);
}

std::string UcxTransport::describe(std::span<const Window> windows) {
  const UcpLibrary& ucp = impl_->ucp;
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  check("asking for the own address", ucp.worker_get_address(impl_->worker, &address, &bytes));
  std::string description;
  append_value(description, static_cast<std::uint64_t>(bytes));
  append(description, address, bytes);
  ucp.worker_release_address(impl_->worker, address);
  append_value(description, static_cast<std::uint64_t>(windows.size()));
  for (const Window& window : windows) {
    if (window.bytes != 0) {
      impl_->add_window(window, description);
      continue;
    }
    for (int i = 0; i < 3; ++i) append_value(description, std::uint64_t{0});
  }
  return description;
}

void UcxTransport::connect(int rank, const std::string& description,
                           std::span<const std::uint64_t> sizes) {
  const UcpLibrary& ucp = impl_->ucp;
  Peer& peer = impl_->peer(rank);
  Parts parts(description);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(parts.bytes(parts.value<std::uint64_t>()));
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_failure, .arg = &peer};
  const ucs_status_t status = ucp.ep_create(impl_->worker, &params, &peer.endpoint);
  if (status != UCS_OK) {
    throw Error(ErrorCode::setup, fmt::format("UCX cannot reach rank {}: {}", rank,
                                              ucp.status_string(status)));
  }
  if (parts.value<std::uint64_t>() != sizes.size()) {
    throw Error(ErrorCode::setup, fmt::format("UCX: rank {} describes other windows", rank));
  }
  for (const std::uint64_t size : sizes) {
    RemoteWindow window;
    window.address = parts.value<std::uint64_t>();
    const auto told = parts.value<std::uint64_t>();
    if (size != 0 && told != size) {
      throw Error(ErrorCode::setup, fmt::format("UCX: rank {} has a window of {} bytes, expected {}",
                                                rank, told, size));
    }
    const auto bytes = parts.value<std::uint64_t>();
    const char* key = parts.bytes(bytes);
    if (size != 0) {
      check("reading a memory key", ucp.rkey_unpack(peer.endpoint, key, &window.key));
    }
    peer.windows.push_back(window);
  }
}

// Whether the bytes are still needed: until the callback.
bool UcxTransport::Impl::put(int rank, std::size_t window, std::uint64_t offset,
                             std::span<const std::byte> from, const ucp_request_param_t& param) {
  Peer& to = peer(rank);
  moved += from.size();
  to.puts_since = true;
  const RemoteWindow& there = to.windows[window];
  const ucs_status_ptr_t request =
      ucp.put(to.endpoint, from.data(), from.size(), there.address + offset, there.key, &param);
  if (UCS_PTR_IS_ERR(request)) to.status = UCS_PTR_STATUS(request);
  return UCS_PTR_IS_PTR(request);
}

void UcxTransport::put(int rank, std::size_t window, std::uint64_t offset,
                       std::span<const std::byte> from) {
  if (impl_->peer(rank).status != UCS_OK || from.empty()) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
  param.cb.send = on_put;
  (void)impl_->put(rank, window, offset, from, param);
}

void UcxTransport::order() {
  const ucs_status_t status = impl_->ucp.worker_fence(impl_->worker);
  if (status == UCS_OK) return;
  for (Peer& peer : impl_->peers) peer.status = status;
}

// That which was taken the longest time ago, or a new one.
Parcel& UcxTransport::Impl::free_parcel() {
  if (next_parcel >= parcels.size()) next_parcel = 0;
  if (parcels.empty() || !parcels[next_parcel].is_free) {
    next_parcel = parcels.size();
    parcels.emplace_back();
  }
  return parcels[next_parcel++];
}

void UcxTransport::put_copy(int rank, std::size_t window, std::uint64_t offset,
                            std::span<const std::byte> from) {
  if (impl_->peer(rank).status != UCS_OK || from.empty()) return;
  Parcel& parcel = impl_->free_parcel();
  std::memcpy(parcel.bytes.data(), from.data(), from.size());
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_parcel;
  param.user_data = &parcel;
  parcel.is_free = false;
  const std::span<const std::byte> copy(parcel.bytes.data(), from.size());
  if (!impl_->put(rank, window, offset, copy, param)) parcel.is_free = true;
}

void UcxTransport::get(int rank, std::size_t window, std::uint64_t offset, std::span<std::byte> to,
                       int* done) {
  Peer& peer = impl_->peer(rank);
  *done = peer.status == UCS_OK ? 0 : 2;
  if (*done != 0) return;
  impl_->moved += to.size();
  const RemoteWindow& from = peer.windows[window];
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_get;
  param.user_data = done;
  const ucs_status_ptr_t request = impl_->ucp.get(peer.endpoint, to.data(), to.size(),
                                                  from.address + offset, from.key, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  *done = UCS_PTR_IS_ERR(request) ? 2 : 1;
  if (UCS_PTR_IS_ERR(request)) peer.status = UCS_PTR_STATUS(request);
}

int UcxTransport::progress() { return static_cast<int>(impl_->ucp.worker_progress(impl_->worker)); }

bool UcxTransport::flushed(int rank) {
  const UcpLibrary& ucp = impl_->ucp;
  Peer& peer = impl_->peer(rank);
  if (peer.endpoint == nullptr || peer.status != UCS_OK) return true;
  if (peer.flush == nullptr) {
    const ucp_request_param_t param = {};
    const ucs_status_ptr_t request = ucp.ep_flush(peer.endpoint, &param);
    if (UCS_PTR_IS_ERR(request)) peer.status = UCS_PTR_STATUS(request);
    if (!UCS_PTR_IS_PTR(request)) return true;
    peer.flush = request;
    peer.puts_since = false;
  }
  const ucs_status_t status = ucp.request_check_status(peer.flush);
  if (status == UCS_INPROGRESS) return false;
  ucp.request_free(std::exchange(peer.flush, nullptr));
  if (status != UCS_OK) peer.status = status;
  return !peer.puts_since || flushed(rank);
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

const char* UcxTransport::failure(int rank) const {
  const Peer& peer = impl_->peer(rank);
  return peer.status == UCS_OK ? nullptr : impl_->ucp.status_string(peer.status);
}

std::uint64_t UcxTransport::bytes() const { return impl_->moved; }

std::string UcxTransport::version() { return ucp_library().version_string(); }

}  // namespace ubep
