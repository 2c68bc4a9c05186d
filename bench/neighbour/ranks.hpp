// The ranks: processes whose OpenMP threads compute, and exchange with one lane or with all.
#pragma once

#include "bench/neighbour/ground.hpp"
#include "ubep/bootstrap.hpp"

namespace ubep::bench {

struct Setting {
  int ranks = 1;
  int threads = 1;  // of each rank
  int tokens = 32;  // of each rank
  int hidden = 2048;
  int experts = 64;
  int topk = 8;
  int gemm_rows = 64;  // of each of the two products in a cycle
  int blocks = 6;      // of each segment, in turn
  int cycles = 40;     // of a block; the first two are not counted
};

// The body of one rank. Throws on any failure.
void run_rank(const Setting& setting, const Bootstrap& bootstrap, Ground& ground);

// The body of the foreign process: one thread of products whenever the ground says so, until its
// end.
void run_foreign(const Setting& setting, Ground& ground);

}  // namespace ubep::bench
