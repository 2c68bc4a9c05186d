// `ubep bench`: forks its ranks, measures every point and prints the result.
#pragma once

namespace CLI {
class App;
}

namespace ubep::tools {

struct BenchOptions;

// Returns the exit code. Throws InputError for options that do not fit one another.
int run_bench(const CLI::App& app, BenchOptions& options);

}  // namespace ubep::tools
