// Recorded routing, and the text that names one.
#include <algorithm>

#include "fuzz_inputs/fuzz_input.hpp"
#include "fuzz_inputs/memory_file.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/routing_source.hpp"

namespace ubep::test {

// The first four bytes: file or text, tokens of two ranks, top-k; then the file or the text.
std::vector<std::string> example_inputs() {
  const std::string file =
      safetensors(R"({"topk_idx":{"dtype":"I32","shape":[3,2],"data_offsets":[0,24]}})",
                  std::string("\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\xff\xff\xff\xff\4\0\0\0", 24));
  const std::string layers =
      safetensors(R"({"topk_idx":{"dtype":"I64","shape":[2,1,2],"data_offsets":[0,32]}})",
                  std::string(32, '\0'));
  return {std::string("\1\2\1\1", 4) + file, std::string("\1\1\0\1", 4) + layers,
          std::string("\0\5\3\1", 4) + "zipf:1.1", std::string("\0\5\3\1", 4) + "hot:2",
          std::string("\0\5\3\1", 4) + "uniform"};
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ubep::test;
  Bytes bytes(data, size);
  const bool is_file = bytes.up_to(1) == 1;
  ubep::tools::RoutingOptions options{
      .num_tokens = {bytes.up_to(40), bytes.up_to(40)}, .topk = bytes.between(1, 8), .experts = 16};
  const std::string text = bytes.rest();
  if (!is_file && text.starts_with("file:")) return 0;  // not what lies on this machine
  const MemoryFile input(is_file ? text : "");
  try {
    const auto ranks = ubep::tools::make_routing(is_file ? "file:" + input.path() : text, options);
    promise(ranks.size() == 2, "a routing for each rank");
    for (const ubep::tools::RankRouting& rank : ranks) {
      promise(std::all_of(rank.topk_idx.begin(), rank.topk_idx.end(),
                          [](int id) { return id >= -1 && id < 16; }),
              "experts exist");
      promise(rank.topk_idx.size() == rank.topk_weights.size(), "a weight for each choice");
    }
  } catch (const ubep::tools::InputError&) {
  }
  return 0;
}
