#include "tools/ubep/info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/launched.hpp"
#include "ubep/ubep.hpp"

namespace ubep::tools {
namespace {

// A row for each rank: what carries its tokens to each other.
void print_ranks(const CommunicatorFacts& facts) {
  const std::size_t ranks = facts.host_of.size();
  const std::set<int> hosts(facts.host_of.begin(), facts.host_of.end());
  fmt::print("{} ranks on {} host{}\n", ranks, hosts.size(), hosts.size() == 1 ? "" : "s");
  std::size_t width = 4;
  for (const std::string& host : facts.host_names) width = std::max(width, host.size());
  fmt::print("{:>4}  {:<{}} ", "rank", "host", width);
  for (std::size_t to = 0; to < ranks; ++to) fmt::print(" {:>3}", to);
  for (std::size_t from = 0; from < ranks; ++from) {
    fmt::print("\n{:>4}  {:<{}} ", from, facts.host_names[from], width);
    for (std::size_t to = 0; to < ranks; ++to) {
      const bool near = facts.host_of[from] == facts.host_of[to];
      fmt::print(" {:>3}", from == to ? "-" : near ? "shm" : "ucx");
    }
  }
  fmt::print("\n");
}

}  // namespace

int run_info() {
  const Bootstrap bootstrap = under_launcher() ? Bootstrap::from_environment() : Bootstrap{};
  CommunicatorFacts facts;
  if (!bootstrap.address.empty()) {
    CommunicatorOptions options;
    options.num_experts = bootstrap.size;
    options.max_hidden = 1;
    facts = Communicator::create(bootstrap, options).facts();
  }
  if (bootstrap.rank != 0) return kOk;
  fmt::print("{}\nbetween hosts: {}\n", build_facts(), host_transport());
  if (!facts.host_of.empty()) print_ranks(facts);
  return std::fflush(stdout) == 0 ? kOk : kUsage;
}

}  // namespace ubep::tools
