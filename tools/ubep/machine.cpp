#include "tools/ubep/machine.hpp"

#include <sched.h>

#include <cstddef>
#include <fstream>

namespace ubep::tools {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    return value == line.npos ? "" : line.substr(value);
  }
  return "";  // as on most aarch64 systems
}

}  // namespace

std::string_view placement_name(Placement placement) {
  switch (placement) {
    case Placement::smt:
      return "smt";
    case Placement::near:
      return "near";
    case Placement::far:
      return "far";
    case Placement::mixed:
      return "mixed";
    case Placement::unknown:
      break;
  }
  return "unknown";
}

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  // The kernel refuses sets smaller than its own number of CPUs, which it does not tell.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    const std::size_t set_bytes = CPU_ALLOC_SIZE(capacity);
    const bool good = sched_getaffinity(0, set_bytes, set) == 0;
    for (int cpu = 0; good && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), set_bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (good) break;
  }
  return cpus;
}

PlacementProbe probe_placement() {
  const std::vector<int> cpus = usable_cpus();
  return cpus.size() < 2 ? PlacementProbe{} : probe_placement(cpus[0], cpus[1]);
}

Machine read_machine() {
  return {static_cast<int>(usable_cpus().size()), cpu_model(), probe_placement()};
}

}  // namespace ubep::tools
