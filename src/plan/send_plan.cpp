#include "plan/send_plan.hpp"

#include <algorithm>

namespace ubep {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Writes the refs of one token after those of the token before it.
class RefWriter {
 public:
  RefWriter(const PlanShape& shape, std::size_t most, SendPlan& plan)
      : per_rank_(shape.row_per_choice() && shape.reduction == Reduction::per_rank), plan_(plan) {
    plan.refs.resize(most);
    plan.ref_weights.resize(shape.row_per_choice() ? most : 0);
    plan.group_end.resize(per_rank_ ? most : 0);
    refs_ = plan.refs.data();
    weights_ = plan.ref_weights.data();
  }
  ~RefWriter() {
    plan_.refs.resize(count_);
    if (!plan_.ref_weights.empty()) plan_.ref_weights.resize(count_);
    if (!plan_.group_end.empty()) plan_.group_end.resize(count_);
  }
  RefWriter(const RefWriter&) = delete;
  RefWriter& operator=(const RefWriter&) = delete;

  std::uint32_t count() const { return static_cast<std::uint32_t>(count_); }
  void add_row(const RowRef& ref) { refs_[count_++] = ref; }
  void begin_token() { first_ = count_; }
  void add_choice(const RowRef& ref, float weight) {
    refs_[count_] = ref;
    weights_[count_++] = weight;
  }
  // k order stays, or becomes (rank, k) order with the ends of the partial sums marked.
  void end_token() {
    if (!per_rank_) return;
    sort_by_rank();
    for (std::size_t i = first_; i < count_; ++i) {
      const bool last = i + 1 == count_ || refs_[i + 1].rank != refs_[i].rank;
      plan_.group_end[i] = last ? 1 : 0;
    }
  }

 private:
  // Choices of one rank keep their order. By insertion: std::stable_sort would allocate.
  void sort_by_rank() {
    for (std::size_t i = first_ + 1; i < count_; ++i) {
      const RowRef ref = refs_[i];
      const float weight = weights_[i];
      std::size_t place = i;
      for (; place > first_ && refs_[place - 1].rank > ref.rank; --place) {
        refs_[place] = refs_[place - 1];
        weights_[place] = weights_[place - 1];
      }
      refs_[place] = ref;
      weights_[place] = weight;
    }
  }

  bool per_rank_;
  SendPlan& plan_;
  RowRef* refs_;
  float* weights_;
  std::size_t first_ = 0;  // of the token
  std::size_t count_ = 0;
};

// From the numbers of each key to the first of each.
std::uint32_t sum_up(std::span<const std::uint32_t> numbers, std::vector<std::uint32_t>& first) {
  first.resize(numbers.size());
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    first[i] = sum;
    sum += numbers[i];
  }
  return sum;
}

// What the token has rows on: is it needed elsewhere, and who owns them.
template <class Set>
void note_ranks(Set ranks, int self, std::uint32_t token, SendPlan& plan, Set& owners) {
  owners |= ranks;
  ranks.erase(self);
  plan.crosses[token] = ranks.empty() ? 0 : 1;
}

// A row per (token, k), numbered within its group: sorted by (group, token, k), where groups are
// expert positions, or ranks for topk1.
template <class Set>
Set plan_choices(const RoutingView& routing, const ExpertMap& experts, const PlanShape& shape,
                 int self, SendPlan& plan) {
  const bool by_expert = is_by_expert(shape.layout);
  const std::int32_t* group_of = (by_expert ? experts.position : experts.rank).data();
  const auto ranks = static_cast<int>(plan.off.size()) - 1;
  plan.group_rows.assign(by_expert ? at(experts.num_experts()) : at(ranks), 0);
  std::uint32_t* rows = plan.group_rows.data();
  for (std::int32_t e : routing.topk_idx) {
    if (e >= 0) ++rows[group_of[e]];
  }
  const std::uint32_t total = sum_up(plan.group_rows, plan.first);
  const std::uint32_t* first = plan.first.data();
  for (int r = 0; r <= ranks; ++r) {
    const std::size_t group = by_expert ? at(experts.first[at(r)]) : at(r);
    plan.off[at(r)] = group < plan.first.size() ? first[group] : total;
  }
  plan.entries.resize(total);
  std::fill(plan.group_rows.begin(), plan.group_rows.end(), 0U);
  RefWriter refs(shape, routing.topk_idx.size(), plan);
  Entry* const entries = plan.entries.data();
  Set owners(ranks);
  std::size_t i = 0;
  for (std::uint32_t t = 0; t < routing.num_tokens; ++t) {
    Set token_ranks(ranks);
    refs.begin_token();
    for (int k = 0; k < shape.topk; ++k, ++i) {
      const std::int32_t e = routing.topk_idx[i];
      if (e < 0) continue;
      const std::int32_t rank = experts.rank[at(e)];
      const std::int32_t group = group_of[e];
      const std::uint32_t row = rows[group]++;
      const float weight = routing.topk_weights[i];
      token_ranks.insert(rank);
      entries[first[group] + row] = {t, static_cast<std::uint16_t>(e),
                                     static_cast<std::uint16_t>(k), weight};
      refs.add_choice({row, static_cast<std::uint16_t>(rank),
                       static_cast<std::uint16_t>(by_expert ? experts.local[at(e)] : 0)},
                      weight);
    }
    refs.end_token();
    note_ranks(token_ranks, self, t, plan, owners);
    plan.ref_begin[t + 1] = refs.count();
  }
  return owners;
}

// A row per (token, rank): entries sorted by (rank, token, k), refs in rank order.
template <class Set>
Set plan_tokens(const RoutingView& routing, const ExpertMap& experts, const PlanShape& shape,
                int self, SendPlan& plan) {
  const auto ranks = static_cast<int>(plan.off.size()) - 1;
  const Set start = shape.every_token ? Set::all(ranks) : Set(ranks);
  plan.group_rows.assign(at(ranks), 0);
  plan.first.assign(at(ranks), 0);
  std::uint32_t* next = plan.first.data();
  RefWriter refs(shape,
                 std::min(at(shape.topk), at(ranks)) * routing.num_tokens +
                     (shape.every_token ? at(ranks) * routing.num_tokens : 0),
                 plan);
  Set owners(ranks);
  std::size_t i = 0;
  for (std::uint32_t t = 0; t < routing.num_tokens; ++t) {
    Set token_ranks = start;
    for (int k = 0; k < shape.topk; ++k, ++i) {
      const std::int32_t e = routing.topk_idx[i];
      if (e < 0) continue;
      const std::int32_t rank = experts.rank[at(e)];
      ++next[rank];
      token_ranks.insert(rank);
    }
    token_ranks.for_each([&](int r) {
      refs.add_row({plan.group_rows[at(r)]++, static_cast<std::uint16_t>(r), 0});
    });
    note_ranks(token_ranks, self, t, plan, owners);
    plan.ref_begin[t + 1] = refs.count();
  }
  for (std::size_t r = 0; r < at(ranks); ++r) plan.off[r + 1] = plan.off[r] + next[r];
  std::copy_n(plan.off.begin(), ranks, next);
  plan.entries.resize(plan.off.back());
  i = 0;
  for (std::uint32_t t = 0; t < routing.num_tokens; ++t) {
    for (int k = 0; k < shape.topk; ++k, ++i) {
      const std::int32_t e = routing.topk_idx[i];
      if (e < 0) continue;
      plan.entries[next[experts.rank[at(e)]]++] = {
          t, static_cast<std::uint16_t>(e), static_cast<std::uint16_t>(k), routing.topk_weights[i]};
    }
  }
  return owners;
}

// Set: FewRanks wherever it has room for all.
template <class Set>
void plan_with(const RoutingView& routing, const ExpertMap& experts, const PlanShape& shape,
               int self, SendPlan& plan) {
  const Set owners = shape.row_per_choice() ? plan_choices<Set>(routing, experts, shape, self, plan)
                                            : plan_tokens<Set>(routing, experts, shape, self, plan);
  owners.for_each([&](int r) { plan.owners.insert(r); });
}

}  // namespace

void make_send_plan(const RoutingView& routing, const ExpertMap& experts, const PlanShape& shape,
                    int self, SendPlan& plan) {
  const std::size_t ranks = experts.first.size() - 1;
  plan.num_tokens = routing.num_tokens;
  plan.off.assign(ranks + 1, 0);
  plan.owners = RankSet(static_cast<int>(ranks));
  plan.crosses.resize(routing.num_tokens);
  plan.ref_begin.resize(std::size_t{routing.num_tokens} + 1);
  plan.ref_begin[0] = 0;
  ranks <= 64 ? plan_with<FewRanks>(routing, experts, shape, self, plan)
              : plan_with<RankSet>(routing, experts, shape, self, plan);
}

}  // namespace ubep
