#include "tools/ubep/forked.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "tools/ubep/exit_code.hpp"

namespace ubep::tools {

int run_on_stage(Stage& stage, int ranks, const char* command,
                 const std::function<int(const Bootstrap&)>& body) {
  const auto statuses = fork_ranks(ranks, body, [&](int rank, int status) {
    if (status > 128) {
      stage.fail(kPeerLost, fmt::format("rank {} was killed by signal {}", rank, status - 128));
    }
  });
  if (stage.failed()) {
    fmt::print(stderr, "{}: {}\n", command, stage.text());
    return stage.exit_code();
  }
  for (std::size_t r = 0; r < statuses.size(); ++r) {
    if (statuses[r] == 0) continue;
    fmt::print(stderr, "{}: rank {} ended with status {}\n", command, r, statuses[r]);
    return kCheckFailed;
  }
  return kOk;
}

}  // namespace ubep::tools
