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
  for (const SourceRows& source : plan.sources) {
    for (const Entry& entry : source.entries) ++plan.expert_counts[at(local_of(experts, entry))];
  }
  plan.expert_offsets.assign(at(num_local) + 1, 0);
  for (std::size_t e = 0; e < at(num_local); ++e) {
    const auto rows = static_cast<std::uint64_t>(plan.expert_counts[e]);
    plan.expert_offsets[e + 1] = plan.expert_offsets[e] + static_cast<std::int32_t>(room.of(rows));
  }
}

void place_by_expert(const ExpertRoom& room, ReceivePlan& plan) {
  const std::size_t groups = at(plan.groups);
  for (std::size_t g = 0; g < groups; ++g) {
    auto next = static_cast<std::uint32_t>(plan.expert_offsets[g]);
    for (std::size_t q = 0; q < plan.sources.size(); ++q) {
      const auto& begin = plan.sources[q].group_begin;
      plan.bases[q * groups + g] = next;
      next += begin[g + 1] - begin[g];
    }
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

// ids and weights of every row, by column k (one column for topk1).
void fill_choices(const ExpertMap& experts, const PlanShape& shape, ReceivePlan& plan) {
  const std::size_t columns = shape.topk1 ? 1 : at(shape.topk);
  plan.topk_idx.assign(at(plan.num_rows) * columns, -1);
  plan.topk_weights.assign(at(plan.num_rows) * columns, 0.0F);
  std::size_t first = 0;
  for (const SourceRows& source : plan.sources) {
    for (std::size_t row = 0; row < source.num_rows(); ++row) {
      for (std::size_t j = source.row_entry[row]; j < source.row_entry[row + 1]; ++j) {
        const Entry& entry = source.entries[j];
        const std::size_t cell = (first + row) * columns + (shape.topk1 ? 0 : entry.k);
        plan.topk_idx[cell] = local_of(experts, entry);
        plan.topk_weights[cell] = entry.weight;
      }
    }
    first += source.num_rows();
  }
}

// The index list: rows of each expert in order (source, token, k). Uses expert_offsets as cursors.
void fill_expert_rows(const ExpertMap& experts, bool want_pairs, ReceivePlan& plan) {
  plan.expert_rows.resize(at(plan.expert_offsets.back()));
  plan.pairs.resize(want_pairs ? plan.sources.size() : 0);
  auto& next = plan.expert_offsets;
  std::int32_t first = 0;
  for (std::size_t q = 0; q < plan.sources.size(); ++q) {
    const SourceRows& source = plan.sources[q];
    if (want_pairs) plan.pairs[q].resize(source.entries.size());
    for (std::size_t row = 0; row < source.num_rows(); ++row) {
      for (std::size_t j = source.row_entry[row]; j < source.row_entry[row + 1]; ++j) {
        const std::int32_t place = next[at(local_of(experts, source.entries[j]))]++;
        plan.expert_rows[at(place)] = first + static_cast<std::int32_t>(row);
        if (want_pairs) plan.pairs[q][j] = static_cast<std::uint32_t>(place);
      }
    }
    first += static_cast<std::int32_t>(source.num_rows());
  }
  for (std::size_t e = next.size() - 1; e > 0; --e) next[e] = next[e - 1];  // cursors to offsets
  next[0] = 0;
}

// Every token is a row; entries are in token order.
void index_every_token(std::uint32_t tokens, SourceRows& source) {
  std::uint32_t entry = 0;
  for (std::uint32_t token = 0; token < tokens; ++token) {
    source.row_token.push_back(token);
    source.row_entry.push_back(entry);
    while (entry < source.entries.size() && source.entries[entry].token == token) ++entry;
  }
  source.group_begin.back() = tokens;
}

}  // namespace

void index_rows(const ExpertMap& experts, const PlanShape& shape, int rank, std::uint32_t tokens,
                SourceRows& source) {
  const bool by_expert = is_by_expert(shape.layout);
  const std::size_t groups = at(shape.groups(experts, rank));
  source.row_token.clear();
  source.row_entry.clear();
  source.group_begin.assign(groups + 1, 0);
  if (shape.every_token) index_every_token(tokens, source);
  for (std::size_t j = 0; j < source.entries.size() && !shape.every_token; ++j) {
    const Entry& entry = source.entries[j];
    const bool new_row =
        shape.row_per_choice() || j == 0 || entry.token != source.entries[j - 1].token;
    if (!new_row) continue;
    source.row_token.push_back(entry.token);
    source.row_entry.push_back(static_cast<std::uint32_t>(j));
    if (groups != 0) ++source.group_begin[(by_expert ? at(local_of(experts, entry)) : 0) + 1];
  }
  source.row_entry.push_back(static_cast<std::uint32_t>(source.entries.size()));
  for (std::size_t g = 1; g <= groups && !shape.every_token; ++g)
    source.group_begin[g] += source.group_begin[g - 1];
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
  fill_choices(experts, shape.plan, plan);
  fill_expert_rows(experts, shape.want_pairs, plan);
}

}  // namespace ubep
