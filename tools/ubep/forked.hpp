// Ranks that the command forks itself, on a stage. Not for: ranks of a launcher (launched.hpp).
#pragma once

#include <functional>

#include "tools/ubep/stage.hpp"
#include "ubep/bootstrap.hpp"

namespace ubep::tools {

// Runs `body` as each rank and waits for all. Returns the exit code; a failure prints its one line,
// in the name of `command`.
int run_on_stage(Stage& stage, int ranks, const char* command,
                 const std::function<int(const Bootstrap&)>& body);

}  // namespace ubep::tools
