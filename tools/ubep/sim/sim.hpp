// `ubep sim`: dispatch and combine on a pod that is described by a file, in virtual time.
#pragma once

#include "tools/ubep/sim/options.hpp"

namespace ubep::tools {

// Returns the exit code. Throws InputError or ubep::Error.
int run_sim(const CLI::App& app, const SimCommand& command);

}  // namespace ubep::tools
