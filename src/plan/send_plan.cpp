#include "plan/send_plan.hpp"

namespace ubep {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Sorts the entries by (destination, token, k), or by (expert position, token, k): a counting sort
// over `keys` keys. Leaves the end of each key's entries in plan.group_rows.
template <class Key>
void sort_entries(const RoutingView& routing, std::size_t keys, Key key, SendPlan& plan) {
  std::vector<std::uint32_t>& next = plan.group_rows;
  next.assign(keys + 1, 0);
  for (std::int32_t e : routing.topk_idx) {
    if (e >= 0) ++next[key(e) + 1];
  }
  for (std::size_t i = 1; i <= keys; ++i) next[i] += next[i - 1];
  plan.entries.resize(next[keys]);
  std::size_t i = 0;
  for (std::uint32_t t = 0; t < routing.num_tokens; ++t) {
    for (int k = 0; k < routing.topk; ++k, ++i) {
      const std::int32_t e = routing.topk_idx[i];
      if (e < 0) continue;
      plan.entries[next[key(e)]++] = {t, static_cast<std::uint16_t>(e),
                                      static_cast<std::uint16_t>(k), routing.topk_weights[i]};
    }
  }
}

// rank_major: one ref per (token, rank), in rank order.
template <class Set>
void add_rank_refs(const Set& ranks, SendPlan& plan) {
  ranks.for_each([&](int r) {
    plan.refs.push_back({plan.group_rows[at(r)]++, static_cast<std::uint16_t>(r), 0});
  });
}

struct Choice {
  RowRef ref;
  float weight;
};

// Choices of one rank keep their order. By insertion: std::stable_sort would allocate.
void sort_by_rank(std::span<Choice> choices) {
  for (std::size_t i = 1; i < choices.size(); ++i) {
    const Choice choice = choices[i];
    std::size_t place = i;
    for (; place > 0 && choices[place - 1].ref.rank > choice.ref.rank; --place) {
      choices[place] = choices[place - 1];
    }
    choices[place] = choice;
  }
}

// One ref per choice: k order, or (rank, k) order with the ends of the partial sums marked.
void add_choice_refs(std::span<Choice> choices, bool per_rank, SendPlan& plan) {
  if (per_rank) sort_by_rank(choices);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    plan.refs.push_back(choices[i].ref);
    plan.ref_weights.push_back(choices[i].weight);
    if (per_rank) {
      const bool last = i + 1 == choices.size() || choices[i + 1].ref.rank != choices[i].ref.rank;
      plan.group_end.push_back(last ? 1 : 0);
    }
  }
}

// Set: FewRanks wherever it has room for all.
template <class Set>
void add_refs(const RoutingView& routing, const ExpertMap& experts, const PlanShape& shape,
              int self, SendPlan& plan) {
  const bool by_expert = is_by_expert(shape.layout);
  const bool per_rank = shape.reduction == Reduction::per_rank;
  const auto num_ranks = static_cast<int>(experts.first.size()) - 1;
  const Set start = shape.every_token ? Set::all(num_ranks) : Set(num_ranks);
  Set owners(num_ranks);
  Choice choices[kMaxTopk];
  std::size_t i = 0;
  for (std::uint32_t t = 0; t < routing.num_tokens; ++t) {
    Set ranks = start;
    std::size_t count = 0;
    for (int k = 0; k < shape.topk; ++k, ++i) {
      const std::int32_t e = routing.topk_idx[i];
      if (e < 0) continue;
      const std::int32_t r = experts.rank[at(e)];
      ranks.insert(r);
      if (!shape.row_per_choice()) continue;
      const std::int32_t group = by_expert ? experts.local[at(e)] : 0;
      const std::size_t counter = at(by_expert ? experts.position[at(e)] : r);
      choices[count++] = {{plan.group_rows[counter]++, static_cast<std::uint16_t>(r),
                           static_cast<std::uint16_t>(group)},
                          routing.topk_weights[i]};
    }
    shape.row_per_choice() ? add_choice_refs({choices, count}, per_rank, plan)
                           : add_rank_refs(ranks, plan);
    owners |= ranks;
    ranks.erase(self);
    plan.crosses[t] = ranks.empty() ? 0 : 1;
    plan.ref_begin[t + 1] = static_cast<std::uint32_t>(plan.refs.size());
  }
  owners.for_each([&](int r) { plan.owners.insert(r); });
}

}  // namespace

void make_send_plan(const RoutingView& routing, const ExpertMap& experts, const PlanShape& shape,
                    int self, SendPlan& plan) {
  const std::size_t ranks = experts.first.size() - 1;
  const bool by_expert = is_by_expert(shape.layout);
  plan.num_tokens = routing.num_tokens;
  plan.off.assign(ranks + 1, 0);
  plan.refs.clear();
  plan.ref_weights.clear();
  plan.group_end.clear();
  plan.owners = RankSet(static_cast<int>(ranks));
  plan.crosses.assign(routing.num_tokens, 0);
  plan.ref_begin.assign(routing.num_tokens + 1, 0);

  // group_rows doubles as the sort's scratch; afterwards it is filled with the row counts.
  if (by_expert) {
    sort_entries(
        routing, at(experts.num_experts()),
        [&](std::int32_t e) { return at(experts.position[at(e)]); }, plan);
    for (std::size_t r = 1; r <= ranks; ++r) {
      const std::int32_t last = experts.first[r];
      plan.off[r] = last == 0 ? 0 : plan.group_rows[at(last) - 1];
    }
  } else {
    sort_entries(
        routing, ranks, [&](std::int32_t e) { return at(experts.rank[at(e)]); }, plan);
    for (std::size_t r = 1; r <= ranks; ++r) plan.off[r] = plan.group_rows[r - 1];
  }
  plan.group_rows.assign(by_expert ? at(experts.num_experts()) : ranks, 0);
  ranks <= 64 ? add_refs<FewRanks>(routing, experts, shape, self, plan)
              : add_refs<RankSet>(routing, experts, shape, self, plan);
}

}  // namespace ubep
