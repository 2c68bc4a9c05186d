#include "support/case_runner.hpp"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>

#include "support/compare.hpp"
#include "support/rank_run.hpp"

namespace ubep::test {
namespace {

struct RankResult {
  char error[600];
  std::int64_t failed_at_ns;
  std::uint64_t hash;
};

// Notes when the difference was found, while the rank still takes part: it is lost to the others
// afterwards, and what they then report is not the cause.
void run_rank(const Case& c, std::uint64_t delay_seed, const Bootstrap& bootstrap,
              RankResult& result) {
  RankRun run(c, bootstrap.rank, delay_seed);
  try {
    run.run(bootstrap);
    result.hash = run.hash();
  } catch (const std::exception& error) {
    result.failed_at_ns = std::chrono::steady_clock::now().time_since_epoch().count();
    std::snprintf(result.error, sizeof result.error, "%s", error.what());
  }
}

std::string first_cause(const SharedArray<RankResult>& results, const std::vector<int>& statuses) {
  std::string cause;
  std::int64_t failed_at_ns = std::numeric_limits<std::int64_t>::max();
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    if (result.error[0] == 0 && statuses[rank] != 0) {
      return "rank " + std::to_string(rank) + " ended with status " +
             std::to_string(statuses[rank]);
    }
    if (result.error[0] == 0 || result.failed_at_ns > failed_at_ns) continue;
    cause = result.error;
    failed_at_ns = result.failed_at_ns;
  }
  return cause;
}

volatile std::sig_atomic_t seed_digits = 0;  // characters of `seed_text`
char seed_text[64];

// A hang of threads ends the test program: says first which seed it was.
void report_hang(int) {
  const ssize_t written = write(STDERR_FILENO, seed_text, static_cast<std::size_t>(seed_digits));
  std::signal(SIGALRM, SIG_DFL);
  std::raise(written < 0 ? SIGABRT : SIGALRM);
}

void announce(const Case& c) {
  seed_digits = std::snprintf(seed_text, sizeof seed_text, "hang: rerun with UBEP_SEED=%llu\n",
                              static_cast<unsigned long long>(c.seed));
  std::signal(SIGALRM, report_hang);
}

std::uint64_t from_environment(const char* variable, std::uint64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

}  // namespace

CaseResult run_case(const Case& c, RankKind kind, std::uint64_t delay_seed) {
  announce(c);
  const SharedArray<RankResult> results(static_cast<std::size_t>(c.num_ranks));
  const std::vector<int> statuses =
      rank_statuses(kind, c.num_ranks, [&](const Bootstrap& bootstrap) {
        run_rank(c, delay_seed, bootstrap, results[bootstrap.rank]);
      });
  CaseResult result;
  Hash hash;
  for (std::size_t rank = 0; rank < results.size(); ++rank) hash.add(results[rank].hash);
  result.hash = hash.value();
  const std::string cause = first_cause(results, statuses);
  if (!cause.empty()) {
    result.error = cause + " [rerun: UBEP_SEED=" + std::to_string(c.seed) + "; " + name(kind) +
                   ", " + describe(c) + "]";
  }
  return result;
}

std::vector<std::uint64_t> seeds_of_group(int group, int standard) {
  std::vector<std::uint64_t> seeds;
  if (std::getenv("UBEP_SEED") != nullptr) {
    if (group == 0) seeds.push_back(from_environment("UBEP_SEED", 0));
    return seeds;
  }
  const std::uint64_t count = from_environment("UBEP_SEEDS", static_cast<std::uint64_t>(standard));
  for (std::uint64_t i = 0; i < count; ++i) {
    seeds.push_back(static_cast<std::uint64_t>(group) * 1'000'000 + i + 1);
  }
  return seeds;
}

}  // namespace ubep::test
