// The end of a process whose own state is wrong: continuing could hand out wrong data.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ubep {

[[noreturn]] inline void broken_invariant(const char* what) {
  std::fprintf(stderr, "ubep: broken invariant: %s\n", what);
  std::abort();
}

}  // namespace ubep
