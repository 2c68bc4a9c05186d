// Checks and times all ways, interleaved, in the same processes, on the same data.
#pragma once

#include <string>
#include <vector>

#include "bench/rivals/group.hpp"
#include "tools/ubep/routing_source.hpp"

namespace ubep::rivals {

struct Plan {
  Shape shape;
  std::vector<std::vector<tools::RankRouting>> routing;  // [sets][ranks]
  int rounds = 8;
  double block_ms = 15;           // of one way's phases, and of its cycles, in each round
  int block_iters = 16;           // the same on several hosts, which have no clock in common
  bool fixed_choices = false;     // the library's fixed paths and stores, too
  std::vector<std::string> only;  // names that begin so; empty = all
  std::string json;               // a file, written by rank 0
};

std::size_t stage_doubles();

// Returns the exit code; failures are told to the stage.
int run_rank(const Bootstrap& bootstrap, const Plan& plan, tools::Stage& stage, std::byte* shared,
             std::size_t shared_bytes);

}  // namespace ubep::rivals
