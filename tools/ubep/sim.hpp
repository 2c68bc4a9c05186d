// `ubep sim`: dispatch and combine on a pod that is described by a file, in virtual time.
#pragma once

#include <cstdint>
#include <string>

#include "tools/ubep/sim_scenario.hpp"

namespace CLI {
class App;
}

namespace ubep::tools {

struct SimCommand {
  std::string pod;
  int ranks = 0;  // 0 = all of the pod
  int lanes = 0;  // 0 = the pod's
  int tokens = 128;
  int hidden = 7168;
  int topk = 8;
  int experts = 256;
  std::string preset;
  std::string dtype = "bf16";
  std::string layout = "expert_major";
  std::string path = "push";
  std::string roles = "auto";
  std::string routing = "uniform";
  std::string tensor = "topk_idx";
  std::string protocol = "auto";
  std::uint64_t seed = 1;
  int seeds = 1;
  bool payload = false;
  bool ablate = false;
  SimScenario scenario;
  std::string json;
};

void add_sim_options(CLI::App& app, SimCommand& command);

// Returns the exit code. Throws InputError or ubep::Error.
int run_sim(const CLI::App& app, SimCommand& command);

}  // namespace ubep::tools
