// Records as a peer may have written them, and the plans that follow from those that pass.
#include "protocol/record.hpp"

#include <algorithm>

#include "fuzz_inputs/fuzz_input.hpp"
#include "plan/push_plan.hpp"
#include "plan/receive_plan.hpp"

namespace ubep::test {
namespace {

constexpr int kRanks = 3;
constexpr int kTokens = 6;
constexpr int kExperts = 7;

GroupConfig a_group(int topk, int capacity) {
  GroupConfig config;
  config.size = kRanks;
  config.max_tokens = kTokens;
  config.max_topk = topk;
  config.expert_capacity = capacity;
  config.experts = ExpertMap(block_map(kExperts, kRanks), kRanks);
  return config;
}

std::vector<Entry> entries_in(Bytes& bytes, std::size_t most) {
  std::vector<Entry> entries(std::min<std::size_t>(bytes.take<std::uint8_t>(), most));
  if (!entries.empty()) bytes.take(entries.data(), entries.size() * sizeof(Entry));
  return entries;
}

// No row of the plan lies outside what was reserved.
void check_plan(const GroupConfig& config, const ReceiveShape& shape, const ReceivePlan& plan) {
  const auto most = static_cast<std::int64_t>(config.max_rows(shape.rank));
  promise(plan.num_rows >= 0 && plan.num_rows <= most, "rows fit");
  for (std::size_t q = 0; q < plan.sources.size(); ++q) {
    const SourceRows& source = plan.sources[q];
    std::size_t group = 0;
    for (std::uint32_t row = 0; row < source.num_rows(); ++row) {
      while (row >= source.group_begin[group + 1]) ++group;
      promise(source.row_token[row] < kTokens, "tokens exist");
      promise(source.row_entry[row + 1] - source.row_entry[row] <=
                  static_cast<std::uint32_t>(shape.plan.topk),
              "a row has at most top-k choices");
      const std::int64_t place =
          std::int64_t{plan.base(static_cast<int>(q), static_cast<int>(group))} + row -
          source.group_begin[group];
      if (shape.room.capacity != 0 &&
          place >= static_cast<std::int64_t>(group + 1) * shape.room.capacity) {
        continue;
      }
      promise(place < most, "a row has a place");
    }
  }
}

}  // namespace

// Layout, top-k, alignment, capacity, two flags; per source tokens, how many entries, entries.
std::vector<std::string> example_inputs() {
  const auto entry = [](int token, int expert, int k) {
    Entry e{};
    e.token = static_cast<std::uint32_t>(token);
    e.expert = static_cast<std::uint16_t>(expert);
    e.k = static_cast<std::uint16_t>(k);
    e.weight = 0.5F;
    return std::string(reinterpret_cast<const char*>(&e), sizeof(e));
  };
  std::vector<std::string> examples;
  for (int layout = 0; layout < 3; ++layout) {
    for (int flags = 0; flags < 4; ++flags) {
      std::string text = {static_cast<char>(layout),     1, 0, 4, static_cast<char>(flags & 1),
                          static_cast<char>(flags >> 1), 0};
      text += std::string("\6\2", 2) + entry(0, 0, 0) + entry(1, 1, 1);
      text += std::string("\6\3", 2) + entry(0, 0, 0) + entry(2, 0, 1) + entry(5, 2, 0);
      text += std::string("\0\0", 2);
      examples.push_back(text);
    }
  }
  return examples;
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ubep;
  using namespace ubep::test;
  Bytes bytes(data, size);
  ReceiveShape shape;
  shape.plan.layout = static_cast<Layout>(bytes.up_to(2));
  shape.plan.topk = bytes.between(1, 4);
  shape.room.alignment = static_cast<std::uint32_t>(bytes.between(1, kMaxAlignment - 1));
  const auto capacity = static_cast<std::uint32_t>(bytes.between(1, 200));
  const bool rank_major = shape.plan.layout == Layout::rank_major;
  if (shape.plan.layout != Layout::expert_major) shape.room.alignment = 1;
  if (shape.plan.layout == Layout::expert_padded) shape.room.capacity = capacity;
  shape.plan.topk1 = rank_major && bytes.up_to(1) != 0;
  shape.plan.every_token = rank_major && !shape.plan.topk1 && bytes.up_to(1) != 0;
  shape.want_pairs = rank_major && bytes.up_to(1) != 0;
  const GroupConfig config = a_group(shape.plan.topk, static_cast<int>(shape.room.capacity));
  ReceivePlan plan;
  plan.sources.resize(kRanks);
  for (SourceRows& source : plan.sources) {
    const auto tokens = static_cast<std::uint32_t>(bytes.up_to(kTokens));
    source.entries =
        entries_in(bytes, std::size_t{tokens} * static_cast<std::size_t>(shape.plan.topk));
    const OpDifference found =
        find_corruption(source.entries, {.experts = &config.experts,
                                         .rank = shape.rank,
                                         .tokens = tokens,
                                         .topk = static_cast<std::uint32_t>(shape.plan.topk),
                                         .layout = shape.plan.layout});
    if (found.field != nullptr) return 0;
    index_rows(config.experts, shape.plan, shape.rank, tokens, source);
  }
  make_receive_plan(config.experts, shape, plan);
  check_plan(config, shape, plan);
  if (!rank_major) {
    std::vector<float> weights;
    list_row_weights(plan, static_cast<int>(shape.room.capacity), weights);
  }
  // Counts are used as they come; what follows from them is checked behind.
  std::vector<std::vector<std::uint32_t>> counts(kRanks, std::vector<std::uint32_t>(kExperts));
  for (auto& of_source : counts) bytes.take(of_source.data(), of_source.size() * 4);
  std::vector<std::uint32_t> bases(kExperts);
  sum_bases(config.experts, counts, shape.room, {.self = 1, .owner = 0, .absent = RankSet(kRanks)},
            bases.data());
  return 0;
}
