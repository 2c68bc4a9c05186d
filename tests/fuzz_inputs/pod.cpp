// Files that describe a machine.
#include "sim/pod.hpp"

#include "fuzz_inputs/fuzz_input.hpp"
#include "sim/built_in_pods.hpp"
#include "sim/json_reader.hpp"
#include "ubep/status.hpp"

namespace ubep::test {

std::vector<std::string> example_inputs() {
  const std::string small =
      R"({"name": "a", "ranks": 4, "lanes": 1, "port_gb_s": 1, )"
      R"("memory_gb_s": 1, "block_bytes": 64, "jitter_ns": 0, )"
      R"("tiers": [{"name": "t", "ranks": 4, "latency_ns": 1}], )"
      R"("lane": {"issue_ns": 1, "poll_ns": 1, "fence_ns": 1, "put_gb_s": 1, )"
      R"("copy_gb_s": 1, "reduce_gb_s": 1, "plan_gb_s": 1}, )";
  std::vector<std::string> examples = {
      small + R"("variants": [{"name": "v", "weight": 1, "set": {"lane.issue_ns": 2}}]})",
      small + R"("variants": [{"name": "v", "weight": 1, "set": {"bsp": 2}}]})",
      small +
          R"("mapped": "near", "variants": [{"name": "v", "weight": 1, "set": {"combine": 2}}]})"};
  for (const sim::BuiltInPod& pod : sim::built_in_pods()) examples.emplace_back(pod.text);
  return examples;
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ubep::test;
  try {
    const ubep::sim::Pod pod = ubep::sim::read_pod(
        ubep::sim::parse_json("input", std::string(reinterpret_cast<const char*>(data), size)));
    promise(!pod.tiers.empty() && pod.tiers.back().ranks == pod.ranks, "tiers end with the pod");
    (void)pod.tier(0, pod.ranks - 1);
  } catch (const ubep::Error&) {
  }
  return 0;
}
