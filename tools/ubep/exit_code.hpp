// Exit codes of every subcommand.
#pragma once

#include "ubep/status.hpp"

namespace ubep::tools {

enum ExitCode : int { kOk = 0, kCheckFailed = 1, kUsage = 2, kPeerLost = 3, kTimeout = 4 };

inline ExitCode exit_code_of(Code code) {
  switch (code) {
    case Code::ok:
      return kOk;
    case Code::timeout:
      return kTimeout;
    case Code::peer_lost:
      return kPeerLost;
    case Code::no_capacity:
      return kUsage;
    default:
      return kCheckFailed;
  }
}

// An operation that failed, on its way to whoever reports it.
struct Failed {
  Status status;
};

inline void must(const Status& status) {
  if (!status.ok()) throw Failed{status};
}

}  // namespace ubep::tools
