// Which ranks can share memory.
#pragma once

#include <string>

namespace ubep {

// The same text on all ranks that can: boot of the kernel, network namespace (of the rendezvous'
// socket), PID namespace (of life locks) and user; or UBEP_HOST_ID if that is set.
std::string host_id();
// For messages.
std::string host_name();

}  // namespace ubep
