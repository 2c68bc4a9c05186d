// Runs a setup and says what went wrong first; finds a smaller run that fails, too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulation/setup.hpp"

namespace ubep::test {

struct Result {
  std::string error;  // "" = every call returned what it should
  std::uint64_t events = 0;
  std::uint64_t torn_puts = 0;
  sim::Time time = 0;
  std::vector<std::string> transcript;  // when asked for
};

Result run(Setup setup, bool transcript = false);

// The run of a seed in words: what it is, what every rank did and stored, and when, and how it
// ended.
std::string transcript_of(std::uint64_t seed, const Cuts& cuts = {}, bool loses_release = false);

// A smaller run with an error, found by taking away parts of a failing one (and trying other
// schedules); `planted` as in make_setup.
Cuts shrink(std::uint64_t seed, bool planted = false, Cuts best = {});

}  // namespace ubep::test
