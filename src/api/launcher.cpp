#include "api/launcher.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <vector>

#include "base/group_config.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr std::int64_t kLongestMs = 365LL * 24 * 3600 * 1000;

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::setup, text); }

// The names under which one launcher tells the same two numbers.
struct RankVariables {
  const char* launcher;
  const char* rank;
  const char* size;
};

constexpr RankVariables kUbep{"UBEP_RANK", "UBEP_RANK", "UBEP_WORLD_SIZE"};
constexpr RankVariables kTorchrun{"torchrun", "RANK", "WORLD_SIZE"};
constexpr RankVariables kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"};
constexpr RankVariables kMpich{"MPICH", "PMI_RANK", "PMI_SIZE"};
constexpr RankVariables kByHand{"RANK", "RANK", "WORLD_SIZE"};

class Reader {
 public:
  explicit Reader(const LaunchFacts& facts) : facts_(facts) {}

  const char* find(const char* variable) const {
    const char* text = facts_.value(variable);
    return text == nullptr || *text == 0 ? nullptr : text;
  }
  bool has(const char* variable) const { return find(variable) != nullptr; }
  bool has_any(const RankVariables& names) const { return has(names.rank) || has(names.size); }
  bool has_both(const RankVariables& names) const { return has(names.rank) && has(names.size); }

  std::int64_t number(const char* variable, std::int64_t low, std::int64_t high) const {
    const char* text = find(variable);
    const std::string wanted = fmt::format("expected a number, {}..{}", low, high);
    if (text == nullptr) fail(fmt::format("{} is not set: {}", variable, wanted));
    std::int64_t value = 0;
    const char* end = text + std::strlen(text);
    const auto parsed = std::from_chars(text, end, value);
    if (parsed.ec != std::errc{} || parsed.ptr != end || value < low || value > high) {
      fail(fmt::format("{} is '{}', {}", variable, text, wanted));
    }
    return value;
  }

  Bootstrap place(const RankVariables& names) const {
    Bootstrap bootstrap;
    bootstrap.launcher = names.launcher;
    if (!has(names.rank) && has(names.size)) {
      fail(fmt::format("{} is not set, though {} is: expected both", names.rank, names.size));
    }
    if (!has(names.size) && has(names.rank)) {
      fail(fmt::format("{} is not set, though {} is: expected both", names.size, names.rank));
    }
    bootstrap.size = static_cast<int>(number(names.size, 1, kMaxRanks));
    bootstrap.rank = static_cast<int>(number(names.rank, 0, bootstrap.size - 1));
    return bootstrap;
  }

  // The launcher says how many of its ranks are on this host. Where that is not all, they meet at
  // the address in `variable` (null = the launcher names none).
  void find_address(Bootstrap& bootstrap, const char* local_size, const char* variable) const {
    if (!has(local_size)) return;
    const std::int64_t local = number(local_size, 1, kMaxRanks);
    if (local == bootstrap.size || has("UBEP_ADDRESS")) return;
    if (variable != nullptr && has(variable)) {
      bootstrap.address = find(variable);
      return;
    }
    fail(
        fmt::format("{} is {}, but the world has {} ranks ({}): they are on several hosts: "
                    "expected the host of rank 0 in {}{}UBEP_ADDRESS",
                    local_size, local, bootstrap.size, bootstrap.launcher,
                    variable == nullptr ? "" : variable, variable == nullptr ? "" : " or "));
  }

  // `prefix` and what of these is set, or nothing.
  std::string joined(const char* prefix, std::initializer_list<const char*> variables) const {
    std::vector<std::string> parts;
    for (const char* variable : variables) {
      if (has(variable)) parts.emplace_back(find(variable));
    }
    return parts.empty() ? std::string() : fmt::format("{}-{}", prefix, fmt::join(parts, "-"));
  }

  // Of another name on each host: only for ranks of one.
  std::string by_starter(const Bootstrap& bootstrap, const char* prefix, const RankVariables& names,
                         const char* local_size) const {
    if (has("UBEP_RENDEZVOUS")) return {};  // names the job by itself
    const bool on_one_host = has(local_size) && number(local_size, 1, kMaxRanks) == bootstrap.size;
    if (!on_one_host && (has("UBEP_ADDRESS") || !bootstrap.address.empty())) {
      fail(
          fmt::format("ranks may be on several hosts, on which {} tells no job's name that is the "
                      "same: expected a name in UBEP_RENDEZVOUS",
                      bootstrap.launcher));
    }
    const std::string starter = facts_.starter(names.rank, names.size);
    if (!starter.empty()) return fmt::format("{}-{}", prefix, starter);
    fail("cannot tell which process started the ranks: expected a name in UBEP_RENDEZVOUS");
  }

 private:
  const LaunchFacts& facts_;
};

Bootstrap from_ubep(const Reader& env) {
  for (const char* name : {kUbep.rank, kUbep.size}) {
    if (env.has(name)) continue;
    fail(fmt::format("{} is not set: expected UBEP_RANK, UBEP_WORLD_SIZE and UBEP_JOB, or none",
                     name));
  }
  Bootstrap bootstrap = env.place(kUbep);
  if (env.has("UBEP_JOB")) {
    bootstrap.job = env.find("UBEP_JOB");
  } else if (!env.has("UBEP_RENDEZVOUS")) {
    fail("UBEP_JOB is not set: expected a name, the same for all ranks of the job");
  }
  return bootstrap;
}

Bootstrap from_torchrun(const Reader& env) {
  Bootstrap bootstrap = env.place(kTorchrun);
  env.find_address(bootstrap, "LOCAL_WORLD_SIZE", "MASTER_ADDR");
  bootstrap.job = env.joined("torchrun", {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                          "MASTER_ADDR", "MASTER_PORT"});
  return bootstrap;
}

Bootstrap from_open_mpi(const Reader& env) {
  Bootstrap bootstrap = env.place(kOpenMpi);
  constexpr const char* kLocalSize = "OMPI_COMM_WORLD_LOCAL_SIZE";
  env.find_address(bootstrap, kLocalSize, nullptr);
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (bootstrap.job.empty()) bootstrap.job = env.joined("openmpi", {name});
  }
  if (bootstrap.job.empty()) {
    bootstrap.job = env.by_starter(bootstrap, "openmpi", kOpenMpi, kLocalSize);
  }
  return bootstrap;
}

Bootstrap from_mpich(const Reader& env) {
  Bootstrap bootstrap = env.place(kMpich);
  env.find_address(bootstrap, "MPI_LOCALNRANKS", nullptr);
  bootstrap.job = env.by_starter(bootstrap, "mpich", kMpich, "MPI_LOCALNRANKS");
  return bootstrap;
}

Bootstrap from_hand(const Reader& env) {
  Bootstrap bootstrap = env.place(kByHand);
  env.find_address(bootstrap, "LOCAL_WORLD_SIZE", "MASTER_ADDR");
  bootstrap.job = env.joined("env", {"MASTER_ADDR", "MASTER_PORT"});
  if (bootstrap.job.empty()) {
    bootstrap.job = env.by_starter(bootstrap, "env", kByHand, "LOCAL_WORLD_SIZE");
  }
  return bootstrap;
}

// A batch script itself has SLURM_PROCID = 0, but no SLURM_STEP_ID: it is no rank.
bool is_slurm_step(const Reader& env) {
  return env.has("SLURM_STEP_ID") && env.has("SLURM_PROCID");
}

// Of a list as Slurm writes it: "node[03-05,7],other", "a,b", "rack[1-2]node[0-3]".
std::string first_host(const char* variable, const std::string& list) {
  std::string host;
  bool complete = true;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      complete = complete && list[i] != ']';
      continue;
    }
    const std::size_t close = list.find(']', i);
    const std::size_t end = list.find_first_of(",-]", i);
    complete = complete && close != std::string::npos && end > i + 1;
    if (!complete) break;
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  if (complete && !host.empty()) return host;
  fail(fmt::format("{} is '{}', expected names of hosts as Slurm writes them", variable, list));
}

Bootstrap from_slurm(const Reader& env) {
  const bool step = env.has("SLURM_STEP_NUM_TASKS");
  Bootstrap bootstrap =
      env.place({"Slurm", "SLURM_PROCID", step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS"});
  const char* nodes = env.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  if (env.has(nodes) && std::strcmp(env.find(nodes), "1") != 0 && !env.has("UBEP_ADDRESS")) {
    const bool of_step = env.has("SLURM_STEP_NODELIST");
    const char* list = of_step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    if (!env.has(list)) {
      fail(
          fmt::format("{} is {}: ranks are on several hosts: expected their names in {}, or the "
                      "host of rank 0 in UBEP_ADDRESS",
                      nodes, env.find(nodes), list));
    }
    bootstrap.address = first_host(list, env.find(list));
  }
  if (!env.has("SLURM_JOB_ID")) fail("SLURM_JOB_ID is not set, though SLURM_STEP_ID is");
  bootstrap.job = env.joined("slurm", {"SLURM_JOB_ID", "SLURM_STEP_ID"});
  return bootstrap;
}

// RANK and WORLD_SIZE may be left over from something around the launcher: then they say otherwise.
void check_agreement(const Reader& env, const Bootstrap& bootstrap, const RankVariables& other) {
  if (!env.has_both(other)) return;
  const Bootstrap also = env.place(other);
  if (also.rank == bootstrap.rank && also.size == bootstrap.size) return;
  fail(
      fmt::format("{} says rank {} of {}, but {} and {} say rank {} of {}: unset those that do not "
                  "count, or set UBEP_RANK, UBEP_WORLD_SIZE and UBEP_JOB",
                  bootstrap.launcher, bootstrap.rank, bootstrap.size, other.rank, other.size,
                  also.rank, also.size));
}

std::optional<Bootstrap> find_launcher(const Reader& env) {
  if (env.has_any(kUbep) || env.has("UBEP_JOB")) return from_ubep(env);
  if (env.has("TORCHELASTIC_RUN_ID") && env.has_any(kTorchrun)) return from_torchrun(env);
  // srun speaks PMI too, but does not tell how many ranks are here.
  const bool slurm_speaks_pmi = is_slurm_step(env) && !env.has("MPI_LOCALNRANKS");
  const bool mpich = env.has_any(kMpich) && !slurm_speaks_pmi;
  if (env.has_any(kOpenMpi)) {
    Bootstrap bootstrap = from_open_mpi(env);
    check_agreement(env, bootstrap, kByHand);
    if (mpich) check_agreement(env, bootstrap, kMpich);
    return bootstrap;
  }
  if (mpich) {
    Bootstrap bootstrap = from_mpich(env);
    check_agreement(env, bootstrap, kByHand);
    return bootstrap;
  }
  if (env.has_any(kByHand)) return from_hand(env);
  if (is_slurm_step(env)) return from_slurm(env);
  return {};
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What /proc tells of a process.
struct Process {
  std::string command;
  int parent = 0;
  std::string start_time;
};

Process look_at(int pid) {
  Process process;
  const std::string stat = read_all(fmt::format("/proc/{}/stat", pid));
  const std::size_t open = stat.find('(');
  const std::size_t close = stat.rfind(')');  // the command itself may hold brackets
  if (open == std::string::npos || close == std::string::npos) return process;
  process.command = stat.substr(open + 1, close - open - 1);
  std::vector<std::string> fields;  // from the third on: state, parent, ...; start time is the 22nd
  for (std::size_t from = close + 2; from < stat.size() && fields.size() < 20;) {
    const std::size_t end = std::min(stat.find(' ', from), stat.size());
    fields.push_back(stat.substr(from, end - from));
    from = end + 1;
  }
  if (fields.size() < 20) return process;
  process.parent = std::atoi(fields[1].c_str());
  process.start_time = fields[19];
  return process;
}

// No text when its environment is not ours to read: another user's process is no wrapper.
std::string first_value(int pid, const std::string& variable) {
  const std::string environment = read_all(fmt::format("/proc/{}/environ", pid));
  const std::string start = variable + "=";
  for (std::size_t from = 0; from < environment.size();) {
    const std::size_t end = std::min(environment.find('\0', from), environment.size());
    if (environment.compare(from, start.size(), start) == 0) {
      return environment.substr(from + start.size(), end - from - start.size());
    }
    from = end + 1;
  }
  return {};
}

std::string find_starter(const char* rank_variable, const char* size_variable) {
  const auto began_as_we = [](int pid, const char* variable) {
    const char* ours = std::getenv(variable);
    return ours != nullptr && first_value(pid, variable) == ours;
  };
  for (int pid = getppid(); pid > 0;) {
    const Process process = look_at(pid);
    const bool proxy = process.command.rfind("hydra_pmi", 0) == 0;  // MPICH's own
    const bool wrapper = began_as_we(pid, rank_variable) && began_as_we(pid, size_variable);
    if (proxy || process.parent <= 0 || !wrapper) {
      return fmt::format("{}-{}", pid, process.start_time);
    }
    pid = process.parent;
  }
  return {};  // we are the first process of a container
}

}  // namespace

LaunchFacts facts_of_this_process() {
  return {.value = [](const char* variable) { return std::getenv(variable); },
          .starter = find_starter};
}

std::optional<Bootstrap> find_launch(const LaunchFacts& facts) {
  const Reader env(facts);
  std::optional<Bootstrap> bootstrap = find_launcher(env);
  if (!bootstrap) return bootstrap;
  if (env.has("UBEP_RENDEZVOUS")) bootstrap->job = env.find("UBEP_RENDEZVOUS");
  if (env.has("UBEP_ADDRESS")) bootstrap->address = env.find("UBEP_ADDRESS");
  if (env.has("UBEP_PORT")) bootstrap->port = static_cast<int>(env.number("UBEP_PORT", 1, 65535));
  if (const char* key = facts.value("UBEP_JOB_KEY")) {
    if (*key == 0) fail("UBEP_JOB_KEY is empty, expected a secret, or that it is not set");
    bootstrap->key = key;
  }
  if (env.has("UBEP_TIMEOUT_MS")) {
    bootstrap->timeout = std::chrono::milliseconds(env.number("UBEP_TIMEOUT_MS", 1, kLongestMs));
  }
  return bootstrap;
}

}  // namespace ubep
