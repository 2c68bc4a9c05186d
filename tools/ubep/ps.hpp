// `ubep ps`: what the ranks of running jobs do and wait for, and who holds them up.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ubep/inspect.hpp"

namespace CLI {
class App;
}

namespace ubep::tools {

struct PsOptions {
  bool json = false;
  std::string job;  // empty = all
};

void add_ps_options(CLI::App& app, PsOptions& options);
// Returns the exit code.
int run_ps(const PsOptions& options);

// Ranks of one group, in order. Those that others wait for, directly or by way of others, and that
// wait for nobody themselves: as positions in `ranks`. When all that are waited for wait, too, the
// ring they wait in is empty of such.
std::vector<std::size_t> find_culprits(std::span<const RankReport> ranks);
// One line on who holds the group up; empty when nobody waits.
std::string verdict(std::span<const RankReport> ranks);

std::string ps_text(std::span<const RankReport> ranks);
std::string ps_json(std::span<const RankReport> ranks);

}  // namespace ubep::tools
