// Op lines as a peer may have written them.
#include "protocol/op_line.hpp"

#include <algorithm>

#include "fuzz_inputs/fuzz_input.hpp"
#include "protocol/segment_layout.hpp"

namespace ubep::test {
namespace {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

OpLine a_line(Layout layout) {
  OpLine line;
  line.seq = line.epoch = line.origin = 1;
  line.kind = OpKind::dispatch;
  line.layout = layout;
  line.hidden = 8;
  line.topk = 2;
  line.tokens = 3;
  return line;
}

GroupConfig a_group(Bytes& bytes) {
  GroupConfig config;
  config.size = bytes.between(1, 8);
  config.slots = bytes.between(1, 4);
  config.max_tokens = bytes.up_to(64);
  config.max_topk = bytes.between(1, 8);
  config.max_stride = 64;
  config.max_row_bytes = config.max_token_bytes = 64;
  config.expert_capacity = bytes.up_to(200);
  config.push = bytes.up_to(1) != 0;
  config.bsp = config.push && bytes.up_to(1) != 0;
  config.experts = ExpertMap(block_map(bytes.between(1, 32), config.size), config.size);
  return config;
}

// Where the engine would go by such a line.
void check_use(const OpLine& theirs, const GroupConfig& config) {
  promise(theirs.tokens <= static_cast<std::uint32_t>(config.max_tokens), "tokens fit");
  promise(theirs.path != Path::push || config.push, "there is an inbox");
  promise(theirs.path != Path::bsp || config.bsp, "the inbox has room for bsp");
  promise(theirs.capacity <= static_cast<std::uint32_t>(config.expert_capacity), "capacity fits");
  promise(theirs.alignment >= 1 && theirs.alignment <= kMaxAlignment, "alignment fits");
  const SegmentLayout layout(config, 0);
  const Range last = layout.x(config.slots - 1, config.max_stride, 0, theirs.tokens);
  promise(last.offset + last.bytes <= layout.bytes(), "tokens lie in the segment");
}

}  // namespace

// A group, then two lines.
std::vector<std::string> example_inputs() {
  std::vector<std::string> examples;
  for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
    OpLine theirs = a_line(layout);
    theirs.tokens = 5;
    examples.push_back(std::string("\3\1\10\1\20\1\1\7", 8) + bytes_of(a_line(layout)) +
                       bytes_of(theirs));
  }
  return examples;
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ubep;
  using namespace ubep::test;
  Bytes bytes(data, size);
  const GroupConfig config = a_group(bytes);
  const auto mine = bytes.take<OpLine>();
  const auto theirs = bytes.take<OpLine>();
  const OpDifference corruption = find_corruption(theirs, config);
  const OpDifference difference = compare(mine, theirs);
  if (corruption.field == nullptr) check_use(theirs, config);
  if (corruption.field != nullptr) promise(*corruption.field != 0, "corruption has a name");
  // What the engine takes without looking further.
  if (same_but_tokens(mine, theirs)) {
    promise(difference.field == nullptr, "the same is no difference");
    OpLine other = mine;
    other.tokens = theirs.tokens;
    promise(find_corruption(mine, config).field != nullptr || other.tokens > 64 ||
                theirs.tokens > static_cast<std::uint32_t>(config.max_tokens) ||
                corruption.field == nullptr,
            "the same is right, if mine is");
  }
  return 0;
}
