// What this process may have of the system, and what to do when that is not enough.
#pragma once

#include <cstdint>
#include <string>

namespace ubep {

// Why a call failed, for messages: the error, the limit behind it with its value, and the remedy.
std::string explain(int error);
std::string explain_fork(int error);

// Throws Error{setup} when this process may not have so much more address space (ulimit -v): asked
// before peers count on it.
void check_address_space(std::uint64_t bytes);

// As many descriptors as the hard limit allows, for as long as it lives: to tell peers that this
// process has none left.
class SpareFiles {
 public:
  SpareFiles();
  ~SpareFiles();
  SpareFiles(const SpareFiles&) = delete;
  SpareFiles& operator=(const SpareFiles&) = delete;

 private:
  std::uint64_t before_ = 0;  // 0 = nothing was changed
};

}  // namespace ubep
