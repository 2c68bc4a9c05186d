// Files that the command reads tensors from.
#include "tools/ubep/safetensors.hpp"

#include "fuzz_inputs/fuzz_input.hpp"
#include "fuzz_inputs/memory_file.hpp"
#include "tools/ubep/input_error.hpp"

namespace ubep::test {

std::vector<std::string> example_inputs() {
  return {
      safetensors(R"({"x":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})",
                  std::string(12, 'x')),
      safetensors(
          R"({"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
          R"("topk_idx":{"dtype":"I64","shape":[1,2],"data_offsets":[4,20]},)"
          R"("none":{"dtype":"U8","shape":[0,7],"data_offsets":[20,20]}})",
          std::string(20, '\0')),
      safetensors("{}", ""),
      safetensors(
          R"({"a":{"dtype":"I32","shape":[[[[1]]]],"data_offsets":[0,18446744073709551615]}})",
          "abcd"),
      safetensors(R"({"a":{"dtype":"I32","shape":)" + std::string(200'000, '[') +
                      std::string(200'000, ']') + "}}",
                  ""),
  };
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ubep::test;
  const MemoryFile input(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const ubep::tools::SafetensorsFile file(input.path());
    std::uint64_t all = 0;
    for (const auto& [name, info] : file.tensors()) {
      const std::vector<std::byte> bytes = file.read(name);
      promise(bytes.size() == info.size_bytes, "a tensor has the bytes that its header says");
      all += bytes.size();
    }
    promise(all <= size, "tensors are parts of the file");
  } catch (const ubep::tools::InputError&) {
  }
  return 0;
}
