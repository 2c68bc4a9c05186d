// One run of the deterministic simulation: what the ranks do, on which machine, and what befalls
// them. All of it follows from a seed; every part can be taken away to find a smaller run that
// still fails.
//
//   Setup setup = make_setup(seed);
//   Result result = run(setup);             // sim_run.hpp
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/group_config.hpp"
#include "sim/world.hpp"
#include "support/cases.hpp"

namespace ubep::test {

// How one rank differs from the others, which is its caller's error; or it overwrites what it has
// published, which is nobody's right.
enum class Alteration : std::uint8_t { none, dtype, reduction, layout, release, record };

struct Culprit {
  Alteration alteration = Alteration::none;
  int rank = 0;
  int operation = 0;
};

// What is taken away of the run that the seed gives.
struct Cuts {
  std::uint64_t schedule = 0;  // another seed of what does not change the calls; 0 = the seed
  std::vector<int> dropped;    // operations
  int halvings = 0;            // of every rank's tokens
  bool no_fates = false;       // nobody dies or stands still
  bool one_lane = false;
  bool absent = false;  // a rank takes no part, as in some seeds
  bool hosts = false;   // ranks are on several hosts, likewise
  bool strong = false;  // stores are seen at once
  bool prompt = false;  // no hesitation, no jitter
  // Of pushed rows, in place of the one that the seed draws, on memory that can carry it.
  Protocol protocol = Protocol::automatic;
  int checksum_rows = 0;
  // Planted faults of the fabric (sim/memory.hpp).
  bool loses_signal = false;
  std::uint32_t claims_unit = 0;

  std::string arguments() const;  // as the fuzzer takes them
};

struct Setup {
  Case calls;
  sim::WorldOptions world;
  std::vector<sim::Time> starts;  // [ranks]
  std::int64_t most_counts = 0;
  std::uint64_t first_epoch = 0;
  std::uint64_t tile_bytes = 0;
  std::uint64_t start_bytes = 0;
  std::uint64_t scrub_every = std::uint64_t{1} << 30;
  Culprit culprit;
  // How each rank's lanes share the work; empty: they do not.
  struct Lanes {
    Roles roles;
    SendOrder order = SendOrder::scheduled;
  };
  std::vector<Lanes> lanes;  // [ranks]
  bool returns = false;      // GroupConfig::returns
  int absent = -1;           // a rank that takes no part; all others know
};

GroupConfig group_of(const Setup& setup);

// Whether a rank takes the way of relay, as allgather between hosts does.
bool is_relayed(const Setup& setup, const LocalChoice& local);

// `loses_release`: the planted fault of the fabric (sim/memory.hpp).
Setup make_setup(std::uint64_t seed, const Cuts& cuts = {}, bool loses_release = false);

std::string describe(const Setup& setup);

}  // namespace ubep::test
