// Files that say how far ranks are from each other.
#include "sim/topology.hpp"

#include "fuzz_inputs/fuzz_input.hpp"
#include "fuzz_inputs/memory_file.hpp"
#include "sim/built_in_pods.hpp"
#include "ubep/status.hpp"

namespace ubep::test {

std::vector<std::string> example_inputs() {
  std::vector<std::string> examples = {
      R"({ "ranks": 16, "tiers": [ { "name": "node", "ranks": 4 }, { "ranks": 16 } ] })",
      R"({ "latency_ns": [ [0, 60, 250], [60, 0, 250], [250, 250, 0] ], "ratio": 1.5 })",
      R"([[[[[[{"ranks": 1}]]]]]])", std::string(200'000, '[') + std::string(200'000, ']')};
  for (const sim::BuiltInPod& pod : sim::built_in_pods()) examples.emplace_back(pod.text);
  return examples;
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ubep::test;
  const MemoryFile input(std::string(reinterpret_cast<const char*>(data), size));
  try {
    (void)ubep::sim::read_topology(input.path());
  } catch (const ubep::Error&) {
  }
  return 0;
}
