// Who started this process as one rank of several: read from the environment, nothing else.
//
// One launcher may run inside another (torchrun or mpirun inside a Slurm job), and the inner one
// inherits the variables of the outer; so the order in which they are asked matters. It and the
// variables of each are listed at Bootstrap::from_environment and in README.md.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ubep/bootstrap.hpp"

namespace ubep {

// Where the facts come from; tests give their own.
struct LaunchFacts {
  // nullptr = not set. An empty value counts as not set.
  std::function<const char*(const char* variable)> value;
  // The process that started all ranks, as text that differs between jobs; empty = not known.
  std::function<std::string(const char* rank_variable, const char* size_variable)> starter;
};

// Of this process. The starter is the nearest ancestor that did not begin with our rank and size:
// wrappers between it and us (sh, timeout, numactl) have inherited both.
LaunchFacts facts_of_this_process();

// Nothing: no launcher. Throws Error{setup} when variables contradict each other, are missing or no
// numbers, or tell of several hosts and not where to meet.
std::optional<Bootstrap> find_launch(const LaunchFacts& facts);

}  // namespace ubep
