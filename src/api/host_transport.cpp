#include <fmt/format.h>

#include "fabric/ucx/transport.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {

std::string host_transport() {
  try {
    const std::string version = UcxTransport::version();
    return version.empty() ? "not built" : "UCX " + version;
  } catch (const Error& error) {
    return fmt::format("not found: {}", error.what());
  }
}

}  // namespace ubep
