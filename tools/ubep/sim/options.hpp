// Options of `ubep sim`, and what they ask to run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/layer_run.hpp"
#include "sim/pod.hpp"
#include "tools/ubep/protocol_option.hpp"
#include "tools/ubep/sim/scenario.hpp"

namespace CLI {
class App;
}

namespace ubep::tools {

struct SimCommand {
  std::string pod;
  std::string variant;  // "" = all of the pod's
  int ranks = 0;        // 0 = all of the pod
  int lanes = 0;        // 0 = the pod's
  int tokens = 128;
  int hidden = 7168;
  int topk = 8;
  int experts = 256;
  std::string preset;
  std::string dtype = "bf16";
  std::string layout = "expert_major";
  std::string path = "push";
  std::string compare;
  std::string sweep;
  std::string roles = "auto";
  std::string routing = "uniform";
  std::string tensor = "topk_idx";
  std::string protocol = "auto";
  SimScenario scenario;
  std::uint64_t seed = 1;
  int seeds = 1;
  int jobs = 1;
  bool list_variants = false;
  bool payload = false;
  bool ablate = false;
  std::string json;
  std::string trace;
  std::string sensitivity;
};

void add_sim_options(CLI::App& app, SimCommand& command);
// Parts of it, for the subcommands: the pod and what goes over it; seeds, jobs and the result's
// file.
void add_pod_options(CLI::App& app, SimCommand& command);
void add_run_options(CLI::App& app, SimCommand& command);

// What is compared: a path, and how pushed rows are known to have arrived.
struct Contender {
  std::string text;  // as on the command line: "push:tff-512"
  Path path = Path::push;
  std::optional<ProtocolChoice> protocol;  // none = the pod's, where the path has any
};

// "bsp,push:tff-512,push"; `protocol` is that of pushes that name none. Throws InputError.
std::vector<Contender> parse_contenders(const std::string& text,
                                        const std::optional<ProtocolChoice>& protocol);

// "tokens=8,16"; throws InputError.
std::vector<int> parse_token_sweep(const std::string& text);

// Every path with every number of tokens on every variant of the pod and with every seed.
struct SimPlan {
  sim::LayerOptions base;  // all but the pod, tokens, path, protocol, seed and routing
  int lanes = 0;           // 0 = the pod's
  std::vector<sim::PodVariant> variants;
  std::vector<Contender> paths;
  std::vector<int> tokens;
  std::vector<std::uint64_t> seeds;
  std::string routing;
  std::string tensor;
  SimScenario scenario;
  int jobs = 1;

  // One of the runs, without routing.
  sim::LayerOptions options(int tokens, const Contender& path, const sim::PodVariant& variant,
                            std::uint64_t seed) const;
  // [ranks][tokens x topk]
  std::vector<std::vector<std::int32_t>> make_choices(int tokens, std::uint64_t seed) const;
};

// Those of --pod, or the one of --variant. Throws InputError, or what reading a pod throws.
std::vector<sim::PodVariant> find_variants(const SimCommand& command);

// Throws before the first of many runs begins when one of them is not possible.
void check_runs(const SimPlan& plan);

// Throws InputError, or what reading a pod throws, and refuses runs that are not possible.
SimPlan make_plan(const CLI::App& app, const SimCommand& command);

}  // namespace ubep::tools
