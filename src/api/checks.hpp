// Checks of arguments, once, where they enter the library. All throw Error{invalid_argument} that
// names the argument, the value seen and the value expected.
#pragma once

#include "api/path_choice.hpp"
#include "base/group_config.hpp"
#include "engine/handle_state.hpp"
#include "ubep/combine.hpp"
#include "ubep/communicator.hpp"
#include "ubep/dispatch.hpp"

namespace ubep {

// Checks the options and derives what all ranks agree on.
GroupConfig make_config(const CommunicatorOptions& options, int size);
// For ranks that may be on several hosts: rows are put into inboxes on all ways, and need to know
// nothing of other ranks' first.
void let_span_hosts(const CommunicatorOptions& options, GroupConfig& config);
// Returns it with its members in order.
Bootstrap check_bootstrap(const Bootstrap& bootstrap);
// Members of the job of `bootstrap`, not empty. Returns them in order.
std::vector<int> check_members(const Bootstrap& bootstrap, std::vector<int> members);
// Processes of no name would meet those of anybody else who gave none.
void check_job(const Bootstrap& bootstrap);

// [num_rows, hidden] that fits the communicator's rows. `argument` is its name for the message.
void check_rows(const ConstRows& rows, const char* argument, const GroupConfig& config);
void check_routing(const Routing& routing, std::int64_t num_tokens, const GroupConfig& config);
void check_payloads(const Input& in, const DispatchOptions& options, const GroupConfig& config);
void check_same_payloads(const Input& in, const HandleState& cached);
// Returns the options with nothing left `automatic`.
struct ResolvedOptions {
  DispatchOptions options;  // nothing `automatic` is left
  const char* path_reason = "";
};
ResolvedOptions resolve(const DispatchOptions& options, const GroupConfig& config,
                        const PathFacts& facts);
// Input::out, once the options are resolved.
void check_out(const Input& in, const DispatchOptions& options);
// `expert` is one of `num_local`.
void check_expert(int expert, int num_local);
void check_roles(int lanes, const Roles& roles, SendOrder order);
void check_combine(const CombineArgs& args, const HandleState& handle, const GroupConfig& config);

}  // namespace ubep
