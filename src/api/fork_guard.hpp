// Tells a forked child from the process that made an object, without a system call.
#pragma once

namespace ubep {

// Grows by one in every forked child.
int fork_generation();

}  // namespace ubep
