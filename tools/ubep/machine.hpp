// What machine this is, and how two of its CPUs lie to one another right now.
//
// Purpose: the record printed with every benchmark. Virtual CPUs move between "near" (one last
// level cache) and "far" within minutes and nothing shows it, so it is measured.
// Not for: choosing a store policy inside the library (which probes for itself), or for machines
// whose CPUs differ from one another: one pair stands for all.
//
//   Machine machine = read_machine();
//   fmt::print("{} CPUs, {}\n", machine.cpus, placement_name(machine.probe.placement));
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ubep::tools {

enum class Placement {
  smt,      // two threads of one core: flag < 40 ns, or each slows the other's arithmetic > 1.5x
  near,     // flag < 120 ns
  far,      // flag >= 120 ns
  mixed,    // moved while it was measured
  unknown,  // one CPU only, or the measurement failed
};
std::string_view placement_name(Placement placement);

struct PlacementProbe {
  Placement placement = Placement::unknown;
  std::optional<double> flag_one_way_ns;  // median; absent when unknown
  std::optional<double> smt_slowdown;     // time of a loop on both CPUs / alone; absent as above
};

struct Machine {
  int cpus = 0;       // that this process may use
  std::string model;  // "" when the system does not tell
  PlacementProbe probe;
};

// The CPUs of this process's affinity, in rising order.
std::vector<int> usable_cpus();

// Forks two children, pinned to the two CPUs, that pass a flag to and fro through one shared page
// and load the core, alone and both at once, in five interleaved blocks. Takes some 10-20 ms, 100
// at most, and leaves no process behind. The overload without arguments takes the first two
// usable CPUs. Does not throw: every failure is `unknown`.
PlacementProbe probe_placement();
PlacementProbe probe_placement(int first_cpu, int second_cpu);

Machine read_machine();

}  // namespace ubep::tools
