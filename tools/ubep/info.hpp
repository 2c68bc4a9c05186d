// `ubep info`: the build, what there is between hosts, and how the ranks of a launcher reach each
// other.
#pragma once

namespace ubep::tools {

// Returns the exit code. Under a launcher whose ranks may be on several hosts, collective; rank 0
// prints.
int run_info();

}  // namespace ubep::tools
