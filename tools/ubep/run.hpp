// `ubep run`: a MoE layer over a file. x, topk_idx and topk_weights of all ranks' tokens in, y out.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ubep::tools {

struct RunOptions {
  std::string input;
  std::string output;
  int ranks = 2;
  std::string split;  // tokens of each rank: a,b,c; empty = even blocks
  std::string expert = "identity";
  std::string layout = "expert_major";
  int experts = 0;  // 0 = as many as the file needs
};

void add_run_options(CLI::App& app, RunOptions& options);

// Returns the exit code. Throws InputError; then, and after any failure, there is no output file.
int run_file(const RunOptions& options);

}  // namespace ubep::tools
