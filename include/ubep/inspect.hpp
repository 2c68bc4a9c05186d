// What the ranks of running jobs are doing, read from outside: by `ubep ps`, a launcher, a health
// check. Nothing is sent to them, and none of them notices.
//
//   for (const ubep::RankReport& rank : ubep::inspect_ranks()) puts(rank.wait.message().c_str());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ubep/export.hpp"
#include "ubep/status.hpp"

namespace ubep {

// A rank of one communicator. Numbers are what its segment shows: those of a rank that lies are
// lies; `pid`, `alive` and `process` are the kernel's.
struct RankReport {
  std::string job;          // Bootstrap::job
  std::uint64_t group = 0;  // a random number that the ranks of one communicator share
  int rank = 0;
  int size = 0;
  int slots = 0;
  int pid = 0;          // 0 = it cannot be seen from here; of a dead rank the one it said it has
  bool alive = false;   // false: its process has ended, or closed the communicator and destroyed it
  std::string state;    // "live", "left", "failed", "dead"
  std::string process;  // "running", "sleeping", "stopped", ...; empty = not known
  std::string command;

  // The operation that it started last; none before the first.
  OpKind kind = OpKind::none;
  std::uint64_t operations = 0;  // started so far
  std::uint64_t epoch = 0;       // of the last one
  std::string stage;             // what it has published of that one

  // What it waits for, once that has lasted 20 ms: Code::ok = for nothing. `wait.what` is empty,
  // its text in `wait_for`. A wait goes on from call to call; in between, and when its caller has
  // given up, the rank does not look.
  Status wait;
  std::string wait_for;
  double waited_ms = 0;
  double looked_ms = 0;  // since it last looked whether the wait is over: about 50 in a call
};

// All ranks in other processes of this machine that the caller may look into (its own user's; with
// CAP_SYS_PTRACE, all), by job, group and rank. Those in other PID namespaces are seen only where
// their processes are. Throws Error{setup} without a /proc.
UBEP_API std::vector<RankReport> inspect_ranks();

}  // namespace ubep
