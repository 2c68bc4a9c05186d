// `ubep probe`: a pod of two CPUs of this machine, from what its parts take one by one.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ubep::tools {

struct ProbeCommand {
  int tokens = 32;
  int hidden = 2048;
  int topk = 8;
  int experts = 128;
  int laps = 0;  // 0 = by the bytes
  std::string store = "auto";
  std::string preset;
  std::string output = "-";
};

void add_probe_options(CLI::App& app, ProbeCommand& command);
int run_probe(const CLI::App& app, const ProbeCommand& command);

}  // namespace ubep::tools
