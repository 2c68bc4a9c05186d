// The options of `ubep bench`, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/ubep/protocol_option.hpp"
#include "ubep/trace.hpp"
#include "ubep/types.hpp"

namespace CLI {
class App;
}

namespace ubep::tools {

// One item of --compare: `path[@layout]`.
struct BenchPath {
  Path path = Path::automatic;
  Layout layout = Layout::rank_major;
  std::string text;  // as given
};

struct BenchOptions {
  // As given on the command line.
  int ranks = 2;
  std::string tokens = "32";  // a number, or one per rank separated by commas
  int hidden = 2048;
  int topk = 8;
  int experts = 128;
  std::string dtype = "bf16";
  std::string quant = "none";
  std::string layout = "rank_major";
  std::string path = "auto";
  std::string protocol = "auto";
  std::string store = "auto";
  std::string activations = "both";  // in-place | copied | both
  int lanes = 1;
  std::string roles = "auto";
  int slots = 2;
  int max_tokens = 0;  // 0 = the largest of tokens
  std::string routing = "uniform";
  std::string tensor = "topk_idx";
  int iters = 200;
  int warmup = 20;
  std::uint64_t seed = 1;
  bool check = false;
  std::string preset;
  std::string compare;
  std::string compare_ranks;
  bool ablate = false;
  std::string json;
  bool explain = false;

  // Derived by resolve().
  DType dtype_value = DType::bf16;
  Quant quant_value = Quant::none;
  ProtocolChoice protocol_value;
  Store store_value = Store::automatic;
  std::vector<BenchPath> paths;
  std::vector<int> lanes_list;  // of --ablate; else the one
  Roles roles_value;
  std::vector<int> ranks_list;               // one group of points each
  std::vector<std::vector<int>> token_list;  // [points of a group][ranks, or 1 = the same for all]
};

void add_bench_options(CLI::App& app, BenchOptions& options);

// Fills the derived part. `given` tells whether an option stood on the command line. Throws
// InputError.
void resolve_bench_options(const CLI::App& app, BenchOptions& options);

}  // namespace ubep::tools
