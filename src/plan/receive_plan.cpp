#include "plan/receive_plan.hpp"

#include <algorithm>
#include <concepts>

#include "base/math.hpp"

namespace ubep {
namespace {

std::size_t at(std::integral auto i) { return static_cast<std::size_t>(i); }

std::int32_t local_of(const ExpertMap& experts, const Entry& entry) {
  return experts.local[entry.expert];
}

// Rows of each local expert over all sources, and where each begins.
void count_experts(const ExpertMap& experts, int num_local, const ExpertRoom& room,
                   ReceivePlan& plan) {
  plan.expert_counts.assign(at(num_local), 0);
  std::int32_t* const counts = plan.expert_counts.data();
  for (const SourceRows& source : plan.sources) {
    for (const Entry& entry : source.entries) ++counts[local_of(experts, entry)];
  }
  plan.expert_offsets.assign(at(num_local) + 1, 0);
  for (std::size_t e = 0; e < at(num_local); ++e) {
    const auto rows = static_cast<std::uint64_t>(plan.expert_counts[e]);
    plan.expert_offsets[e + 1] = plan.expert_offsets[e] + static_cast<std::int32_t>(room.of(rows));
  }
}

void place_by_expert(const ExpertRoom& room, ReceivePlan& plan) {
  const std::size_t groups = at(plan.groups);
  // Row by row of `bases`: each source's rows begin where those of the source before it end.
  for (std::size_t q = 0; q < plan.sources.size(); ++q) {
    std::uint32_t* const bases = plan.bases.data() + q * groups;
    if (q == 0) {
      std::copy_n(plan.expert_offsets.begin(), groups, bases);
      continue;
    }
    const std::uint32_t* const before = bases - groups;
    const std::uint32_t* const begin = plan.sources[q - 1].group_begin.data();
    for (std::size_t g = 0; g < groups; ++g) bases[g] = before[g] + begin[g + 1] - begin[g];
  }
  plan.num_rows = plan.expert_offsets.back();
  for (std::int32_t& count : plan.expert_counts) {
    if (room.capacity == 0 || static_cast<std::uint32_t>(count) <= room.capacity) continue;
    plan.overflow = std::max(plan.overflow, static_cast<std::uint32_t>(count));
    count = static_cast<std::int32_t>(room.capacity);
  }
}

void place_rank_major(ReceivePlan& plan) {
  std::uint32_t packed = 0;
  for (std::size_t q = 0; q < plan.sources.size(); ++q) {
    plan.bases[q] = packed;
    plan.src_counts[q] = static_cast<std::int32_t>(plan.sources[q].num_rows());
    packed += plan.sources[q].num_rows();
  }
  plan.num_rows = packed;
}

// ids and weights of every row, by column k (one column for topk1), and the index list: rows of
// each expert in order (source, token, k). Uses expert_offsets as cursors.
void fill_choices(const ExpertMap& experts, const ReceiveShape& shape, ReceivePlan& plan) {
  const bool one_column = shape.plan.topk1;
  const std::size_t columns = one_column ? 1 : at(shape.plan.topk);
  plan.topk_idx.assign(at(plan.num_rows) * columns, -1);
  plan.topk_weights.assign(at(plan.num_rows) * columns, 0.0F);
  plan.expert_rows.resize(at(plan.expert_offsets.back()));
  plan.pairs.resize(shape.want_pairs ? plan.sources.size() : 0);
  std::int32_t* const next = plan.expert_offsets.data();
  std::int32_t* const expert_rows = plan.expert_rows.data();
  std::int32_t* idx = plan.topk_idx.data();
  float* weights = plan.topk_weights.data();
  std::int32_t row = 0;
  for (std::size_t q = 0; q < plan.sources.size(); ++q) {
    const SourceRows& source = plan.sources[q];
    if (shape.want_pairs) plan.pairs[q].resize(source.entries.size());
    std::uint32_t* const pairs = shape.want_pairs ? plan.pairs[q].data() : nullptr;
    const Entry* const entries = source.entries.data();
    for (std::size_t r = 0; r < source.num_rows(); ++r, ++row, idx += columns, weights += columns) {
      for (std::size_t j = source.row_entry[r]; j < source.row_entry[r + 1]; ++j) {
        const std::int32_t expert = local_of(experts, entries[j]);
        const std::size_t column = one_column ? 0 : entries[j].k;
        idx[column] = expert;
        weights[column] = entries[j].weight;
        const std::int32_t place = next[expert]++;
        expert_rows[place] = row;
        if (pairs != nullptr) pairs[j] = static_cast<std::uint32_t>(place);
      }
    }
  }
  // Cursors to offsets.
  for (std::size_t e = plan.expert_offsets.size() - 1; e > 0; --e) next[e] = next[e - 1];
  next[0] = 0;
}

// Every token is a row; entries are in token order.
void index_every_token(std::uint32_t tokens, SourceRows& source) {
  std::uint32_t entry = 0;
  for (std::uint32_t token = 0; token < tokens; ++token) {
    source.row_token[token] = token;
    source.row_entry[token] = entry;
    while (entry < source.entries.size() && source.entries[entry].token == token) ++entry;
  }
  source.group_begin.back() = tokens;
}

// A row per entry, in groups of the local experts that entries are sorted by.
void index_choices(const ExpertMap& experts, bool by_expert, SourceRows& source) {
  const std::size_t rows = source.entries.size();
  std::uint32_t* const begin = source.group_begin.data() + 1;
  for (std::size_t j = 0; j < rows; ++j) {
    source.row_token[j] = source.entries[j].token;
    source.row_entry[j] = static_cast<std::uint32_t>(j);
    if (by_expert) ++begin[local_of(experts, source.entries[j])];
  }
  if (!by_expert) {
    begin[0] = static_cast<std::uint32_t>(rows);
    return;
  }
  for (std::size_t g = 1; g < source.group_begin.size(); ++g) {
    source.group_begin[g] += source.group_begin[g - 1];
  }
}

// A row per token that has an entry. Returns how many.
std::uint32_t index_tokens(SourceRows& source) {
  std::uint32_t rows = 0;
  for (std::size_t j = 0; j < source.entries.size(); ++j) {
    const std::uint32_t token = source.entries[j].token;
    if (rows != 0 && source.row_token[rows - 1] == token) continue;
    source.row_token[rows] = token;
    source.row_entry[rows++] = static_cast<std::uint32_t>(j);
  }
  source.group_begin.back() = rows;
  return rows;
}

// Where a row per choice: visit(place, its entry) for each that has a place.
template <class Visit>
void visit_rows(const ReceivePlan& plan, int capacity, const Visit& visit) {
  for (std::size_t q = 0; q < plan.sources.size(); ++q) {
    const SourceRows& source = plan.sources[q];
    std::size_t group = 0;
    for (std::uint32_t row = 0; row < source.num_rows(); ++row) {
      while (row >= source.group_begin[group + 1]) ++group;
      const std::size_t base = plan.base(static_cast<int>(q), static_cast<int>(group));
      const std::size_t place = base + row - source.group_begin[group];
      if (capacity != 0 && place >= (group + 1) * at(capacity)) continue;  // it had no place
      visit(place, source.entries[source.row_entry[row]]);
    }
  }
}

}  // namespace

void index_rows(const ExpertMap& experts, const PlanShape& shape, int rank, std::uint32_t tokens,
                SourceRows& source) {
  const std::size_t entries = source.entries.size();
  const std::size_t most = shape.every_token ? tokens : entries;
  source.group_begin.assign(at(shape.groups(experts, rank)) + 1, 0);
  source.row_token.resize(most);
  source.row_entry.resize(most + 1);
  std::size_t rows = most;
  if (shape.every_token) {
    index_every_token(tokens, source);
  } else if (shape.row_per_choice()) {
    index_choices(experts, is_by_expert(shape.layout), source);
  } else {
    rows = index_tokens(source);
  }
  source.row_token.resize(rows);
  source.row_entry.resize(rows + 1);
  source.row_entry[rows] = static_cast<std::uint32_t>(entries);
}

void make_receive_plan(const ExpertMap& experts, const ReceiveShape& shape, ReceivePlan& plan) {
  const bool by_expert = is_by_expert(shape.plan.layout);
  const int num_local = experts.num_local(shape.rank);
  plan.groups = shape.plan.groups(experts, shape.rank);
  plan.overflow = 0;
  plan.bases.assign(plan.sources.size() * at(plan.groups), 0);
  count_experts(experts, num_local, by_expert ? shape.room : ExpertRoom{}, plan);
  if (by_expert) {
    place_by_expert(shape.room, plan);
    return;
  }
  plan.src_counts.resize(plan.sources.size());
  place_rank_major(plan);
  fill_choices(experts, shape, plan);
}

void list_row_weights(const ReceivePlan& plan, int capacity, std::vector<float>& weights) {
  weights.assign(at(plan.num_rows), 0.0F);
  visit_rows(plan, capacity, [&](std::size_t place, const Entry& e) { weights[place] = e.weight; });
}

void list_row_choices(const ReceivePlan& plan, int capacity, std::vector<std::int32_t>& choices) {
  choices.assign(at(plan.num_rows), -1);
  visit_rows(plan, capacity, [&](std::size_t place, const Entry& e) { choices[place] = e.k; });
}

}  // namespace ubep
