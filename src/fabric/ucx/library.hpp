// UCX's libucp, loaded when it is first needed: whoever stays on one host neither needs it nor gets
// its signal handlers. Only transport.cpp includes this, in builds that have UCX's headers.
#pragma once

#include <ucp/api/ucp.h>

namespace ubep {

struct UcpLibrary {
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close;
  decltype(&ucp_am_send_nbx) am_send;
  decltype(&ucp_request_check_status) request_check_status;
  decltype(&ucp_request_free) request_free;
  const char* (*status_string)(ucs_status_t);
  decltype(&ucp_get_version_string) version_string;
};

// Throws Error{setup} where it is not installed or too old.
const UcpLibrary& ucp_library();

}  // namespace ubep
