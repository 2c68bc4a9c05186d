#include "fabric/ucx/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>

#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr const char* kName = "libucp.so.0";

// libucs sets handlers for crashes as it is loaded. Those are the program's to set.
class KeepSignalHandlers {
 public:
  KeepSignalHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &saved_[i]);
  }
  ~KeepSignalHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &saved_[i], nullptr);
  }
  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> saved_ = {};
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return;
  throw Error(ErrorCode::setup,
              fmt::format("{} has no {}: expected UCX 1.13 or newer", kName, name));
}

UcpLibrary load() {
  const KeepSignalHandlers handlers;
  void* file = dlopen(kName, RTLD_NOW | RTLD_LOCAL);  // for good: it leaves threads and hooks
  if (file == nullptr) {
    throw Error(
        ErrorCode::setup,
        fmt::format("ranks on several hosts need UCX, which cannot be loaded: {}", dlerror()));
  }
  UcpLibrary ucp = {};
  find(file, "ucp_init_version", ucp.init_version);
  find(file, "ucp_cleanup", ucp.cleanup);
  find(file, "ucp_config_read", ucp.config_read);
  find(file, "ucp_config_modify", ucp.config_modify);
  find(file, "ucp_config_release", ucp.config_release);
  find(file, "ucp_worker_create", ucp.worker_create);
  find(file, "ucp_worker_destroy", ucp.worker_destroy);
  find(file, "ucp_worker_get_address", ucp.worker_get_address);
  find(file, "ucp_worker_release_address", ucp.worker_release_address);
  find(file, "ucp_worker_progress", ucp.worker_progress);
  find(file, "ucp_worker_set_am_recv_handler", ucp.worker_set_am_recv_handler);
  find(file, "ucp_ep_create", ucp.ep_create);
  find(file, "ucp_ep_close_nbx", ucp.ep_close);
  find(file, "ucp_am_send_nbx", ucp.am_send);
  find(file, "ucp_request_check_status", ucp.request_check_status);
  find(file, "ucp_request_free", ucp.request_free);
  find(file, "ucs_status_string", ucp.status_string);
  find(file, "ucp_get_version_string", ucp.version_string);
  return ucp;
}

}  // namespace

const UcpLibrary& ucp_library() {
  static const UcpLibrary library = load();
  return library;
}

}  // namespace ubep
