// Random cases: everything that a communicator and a series of operations can be, from one seed.
//
//   Case c = make_case(seed, {});
//   expect(c);                                  // fills in what the reference says
//   std::string error = run_case(c, RankKind::threads).error;       // case_runner.hpp
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random.hpp"
#include "support/reference.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {

// How a rank starts and completes an operation.
enum class Drive : std::uint8_t {
  call,   // dispatch(), combine()
  wait,   // start_...(), wait()
  poll,   // start_...(), step() until poll() is done
  lanes,  // the same from several threads
};

// What is one rank's own affair in one operation.
struct LocalChoice {
  DispatchOptions options;
  Drive drive = Drive::call;
  int lanes = 2;
  bool input = false;  // x is written into input()
  bool own_y = false;  // y is a tensor of the caller's
  int x_gap = 0;       // elements between the rows of x, y and out
  int y_gap = 0;
  int out_gap = 0;
  int shift = 0;             // elements before the first row of x and out
  int tail = -1;             // Input::out has so many rows more than are needed; -1 = not given
  bool by_expert = false;    // combine: outputs are published one expert after the other
  bool finish_late = false;  // other operations are started before this combine is completed
};

// One dispatch and its end.
struct Operation {
  Problem problem;
  bool bsp = false;      // on every rank
  bool release = false;  // ends by release() instead of combine
  int handle = 0;
  int cached = -1;                          // handle whose routing is used again,
  int origin = -1;                          // and the operation that this handle did last
  std::vector<LocalChoice> local;           // [ranks]
  std::vector<ExpectedReceived> received;   // [ranks], by expect()
  std::vector<std::vector<std::byte>> out;  // [ranks]
};

struct Event {
  bool dispatch = true;  // else the end: combine or release
  int operation = 0;
};

struct Case {
  std::uint64_t seed = 0;
  int num_ranks = 1;
  int num_handles = 1;
  CommunicatorOptions options;
  std::vector<Store> stores;  // [ranks]
  std::vector<Operation> operations;
  std::vector<Event> events;  // the order in which every rank starts things
};

struct CaseLimits {
  int max_ranks = 8;  // one case in 16 has up to twice as many
  int max_operations = 12;
  int max_elements = 1 << 20;  // of one rank's tokens
  bool draws_protocol = true;  // of pushed rows
};

// Makes it one of ranks on several hosts, by rank; most operations are relayed.
void spread_over_hosts(Case& c, const std::vector<int>& host_of, Random& random);

// What a rank adds to the sums of an operation.
std::array<ConstRows, 2> added_rows(const Problem& problem, int rank);

Case make_case(std::uint64_t seed, const CaseLimits& limits);
// Draws again what results must not depend on: paths, stores, lanes, buffers, order of completion.
void vary(Case& c, std::uint64_t seed);
// Asks the reference.
void expect(Case& c);

// One line: ranks, experts, operations.
std::string describe(const Case& c);

// Tokens and routing of every rank of `problem` (of which the rest is set): uneven, with -1
// entries, duplicate experts, special values. No rank sends more than it may.
void fill_inputs(Problem& problem, int max_tokens, Random& random);

}  // namespace ubep::test
