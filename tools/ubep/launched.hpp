// The command as one rank of those that a launcher started (torchrun, mpirun, srun, a script).
//
// Purpose: how many ranks there are, memory that they share, one line of error for all of them.
// Not for: ranks that the command forks itself.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "tools/ubep/stage.hpp"
#include "ubep/bootstrap.hpp"

namespace CLI {
class App;
}

namespace ubep::tools {

// A shell in a Slurm step has the variables of a world of one rank: that one may fork its ranks.
bool under_launcher();

// Under a launcher, collective: sets `ranks` to its number. Throws InputError when --ranks says
// another one, or when ranks were given different options.
void take_world(const CLI::App& app, int& ranks);

// Collective: the stage of all ranks, wherever they are.
std::unique_ptr<Stage> make_stage(const Bootstrap& bootstrap, std::size_t doubles);

// Collective: a memory file of `bytes` zeros, the same for all ranks, which are on one host; the
// caller closes it.
int shared_file(const Bootstrap& bootstrap, std::size_t bytes);

// Calls `print` unless another rank of this host and launch does the same just now. Without a
// launcher, always.
void print_once(const std::function<void()>& print);

}  // namespace ubep::tools
