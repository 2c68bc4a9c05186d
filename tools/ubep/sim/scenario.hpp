// Options of `ubep sim` that change what is sent and over which links: quantised rows, slower links
// and ranks, other traffic.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace CLI {
class App;
}
namespace ubep::sim {
struct LayerOptions;
}

namespace ubep::tools {

struct SimScenario {
  std::string quant = "none";
  int record_bytes = 0;  // 0 = by quant
  std::vector<std::string> degrade;
  double background = 0;  // GB/s
  bool aligned = false;
};

void add_scenario_options(CLI::App& app, SimScenario& scenario);

// Throws InputError.
void apply(const SimScenario& scenario, sim::LayerOptions& options);

// ", quant int8, ..."; "" for a plain one.
std::string scenario_text(const sim::LayerOptions& options);
void add_scenario(const sim::LayerOptions& options, nlohmann::ordered_json& json);

}  // namespace ubep::tools
