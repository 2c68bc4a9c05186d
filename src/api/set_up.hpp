// What a rank finds out before it meets the others. All throw Error{invalid_argument, setup}.
#pragma once

#include <chrono>

#include "base/group_config.hpp"
#include "fabric/shm/rendezvous.hpp"
#include "ubep/communicator.hpp"

namespace ubep {

// Of waiting calls.
std::chrono::milliseconds timeout_of(const CommunicatorOptions& options);
MemoryPlan plan_of(const GroupConfig& config, int rank);
void check_memory(const GroupConfig& config, int rank);
// Who asks, and until when.
JoinRequest request_of(const Bootstrap& bootstrap);
// All of it; the address space for it is there.
JoinRequest request_of(const Bootstrap& bootstrap, const GroupConfig& config);

}  // namespace ubep
