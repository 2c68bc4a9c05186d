// The machine that is simulated: how far ranks are from each other and what things cost.
//
// A pod is a data file (JSON); docs/simulator.md has every key. Rates are in GB/s (1e9 bytes),
// times in ns; here they are bytes per second and picoseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/event_queue.hpp"
#include "ubep/types.hpp"

namespace ubep::sim {

struct JsonFile;

// Time that `bytes` take at `rate` bytes per second, rounded up; 0 = no time.
Time time_of(std::uint64_t bytes, std::uint64_t rate);

// Ranks of one group of `ranks` consecutive ones reach each other this way, unless a smaller tier
// has them both.
struct Tier {
  std::string name;
  int ranks = 0;             // of a group; of the last tier all
  Time latency = 0;          // one way
  std::uint64_t uplink = 0;  // shared by a group of the next smaller tier, each way; 0 = unlimited
  std::uint64_t rate = 0;    // of a port for bytes of this tier, at most; 0 = the port's
};

struct LaneCosts {
  Time issue = 0;            // of a copy, whatever its size; and of a flag
  Time poll = 0;             // of a look at a word, or at a peer's state
  Time fence = 0;            // of an order()
  Time barrier = 0;          // of all lanes of a rank
  std::uint64_t put = 0;     // rows into a peer's inbox, by one lane
  std::uint64_t copy = 0;    // within own memory
  std::uint64_t reduce = 0;  // rows that are summed
  std::uint64_t plan = 0;    // routing that is sorted
  std::uint64_t window = 0;  // bytes that a lane may have on their way; 0 = no limit
  int in_flight = 0;         // rows that a lane may have on their way; 0 = no limit
  Time row = 0;              // what prepares a row for a peer, in dispatch
  Time combine_row = 0;      //   and in combine
  Time receive_row = 0;      // of a dispatched row that is copied out of the inbox, or decoded
  // Of mapped memory:
  std::uint64_t read = 0;      // a peer's bytes, as far as it is slower than to read own ones
  std::uint64_t share = 0;     // own memory that peers read, written
  Time read_first = 0;         // until words of a peer that are no row are here
  std::optional<Time> signal;  // of a flag and of the words ahead of it; else as `issue`
  Time launch = 0;             // before a dispatch begins,
  Time combine_launch = 0;     //   and a combine

  Time flag() const { return signal.value_or(issue); }
};

// Less than it should be: a rank's port and memory, or what one rank sends another.
struct Degraded {
  int rank = 0;
  int to = -1;        // -1 = all that the rank sends and takes in
  double factor = 1;  // of the rate: above 0, below 1
};

struct Pod {
  std::string name;
  std::string source;       // of its numbers
  bool projection = false;  // of a machine that nobody has measured
  int ranks = 0;            // that it has
  int lanes = 1;            // of a rank
  std::vector<Tier> tiers;
  std::uint64_t port = 0;        // of a rank, each way
  std::uint64_t memory = 0;      // what a rank's memory takes from all others together
  std::uint64_t background = 0;  // of each port, both ways, other traffic takes so much
  std::vector<Degraded> degraded;
  std::uint32_t block = 4096;               // bytes that a link serves at once
  Time jitter = 0;                          // arrivals are late by up to this much
  Protocol protocol = Protocol::automatic;  // of pushed rows, unless another one is asked for
  LaneCosts lane;
  std::optional<LaneCosts> bsp;  // on path bsp, which other software runs
  // Lanes reach the memory of all ranks by their own loads and stores, without links between, on
  // all paths; rows are stored by this policy. None: copies are sent, but on path read.
  std::optional<Store> mapped;
  std::optional<LaneCosts> combine;      // of mapped memory, in a combine,
  std::optional<LaneCosts> bsp_combine;  //   and in one of bsp

  // The tier of two ranks.
  const Tier& tier(int a, int b) const;
};

// The pod of that name, or of that file (which has a / or ends in .json). Throws
// ubep::Error(invalid_argument) that names file, line and key.
Pod read_pod(const std::string& name_or_path);
Pod read_pod(const JsonFile& file);

// One of the pods that fit what is known of a machine equally well.
struct PodVariant {
  std::string name;
  double weight = 1;  // among those of its pod, which add up to 1
  Pod pod;
};

// All variants that a pod's file lists; the pod itself, with weight 1, where it lists none.
std::vector<PodVariant> read_pod_variants(const std::string& name_or_path);

// Names of the pods that are built in.
std::vector<std::string> pod_names();

}  // namespace ubep::sim
