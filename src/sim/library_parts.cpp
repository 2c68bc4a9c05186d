#include "sim/library_parts.hpp"

#include <utility>

#include "base/group_config.hpp"
#include "base/invariant.hpp"
#include "engine/op.hpp"
#include "memory/copy.hpp"
#include "memory/row_kernels.hpp"
#include "plan/receive_plan.hpp"
#include "plan/send_plan.hpp"
#include "protocol/record.hpp"

namespace ubep::sim {

void copy_row(Store store, std::byte* to, const std::byte* from, std::size_t bytes) {
  copy_with(store, to, from, bytes);
}

void end_rows() {
  store_fence();  // orders: streamed rows, before whatever the caller tells others
}

Store receiving_store(std::uint64_t bytes) {
  return bytes > kCachedBytes ? Store::far : Store::near;
}

void sum_row(std::span<const std::byte* const> rows, const float* weights, std::size_t hidden,
             std::byte* out) {
  sum_rows({.rows = rows, .weights = weights, .hidden = hidden, .dtype = DType::bf16}, out);
}

struct Planner::Impl {
  const std::vector<std::vector<RoutedTokens>>& routing;
  int rank;
  ExpertMap experts;
  PlanShape shape;
  std::vector<std::vector<std::vector<Entry>>> theirs;  // [sets][ranks] what they send here
  SendPlan send;
  ReceivePlan receive;

  RoutingView view(std::size_t set, std::size_t source) const {
    const RoutedTokens& tokens = routing[set][source];
    return {.topk_idx = tokens.topk_idx,
            .topk_weights = tokens.topk_weights,
            .num_tokens = static_cast<std::uint32_t>(tokens.topk_idx.size()) /
                          static_cast<std::uint32_t>(shape.topk),
            .topk = shape.topk};
  }

  void hear(std::size_t set, int source) {
    const auto q = static_cast<std::size_t>(source);
    const std::uint32_t tokens = view(set, q).num_tokens;
    SourceRows& rows = receive.sources[q];
    const std::span<const Entry> entries =
        source == rank ? send.to(rank) : std::span<const Entry>(theirs[set][q]);
    rows.entries.assign(entries.begin(), entries.end());
    if (source != rank) {
      const OpDifference found =
          find_corruption(rows.entries, {.experts = &experts,
                                         .rank = rank,
                                         .tokens = tokens,
                                         .topk = static_cast<std::uint32_t>(shape.topk),
                                         .layout = shape.layout});
      if (found.field != nullptr) broken_invariant(found.field);
    }
    index_rows(experts, shape, rank, tokens, rows);
  }
};

Planner::Planner(const std::vector<std::vector<RoutedTokens>>& routing, int rank, int experts,
                 int topk)
    : impl_(new Impl{.routing = routing, .rank = rank}) {
  const std::size_t ranks = routing.front().size();
  impl_->experts = ExpertMap(block_map(experts, static_cast<int>(ranks)), static_cast<int>(ranks));
  impl_->shape = {.layout = Layout::expert_major, .reduction = Reduction::exact, .topk = topk};
  impl_->receive.sources.resize(ranks);
  for (std::size_t set = 0; set < routing.size(); ++set) {
    auto& of_set = impl_->theirs.emplace_back(ranks);
    for (std::size_t q = 0; q < ranks; ++q) {
      SendPlan plan;
      make_send_plan(impl_->view(set, q), impl_->experts, impl_->shape, static_cast<int>(q), plan);
      const auto entries = plan.to(rank);
      of_set[q].assign(entries.begin(), entries.end());
    }
  }
}

Planner::~Planner() = default;

std::int64_t Planner::plan(std::size_t set) {
  Impl& p = *impl_;
  make_send_plan(p.view(set, static_cast<std::size_t>(p.rank)), p.experts, p.shape, p.rank, p.send);
  for (std::size_t q = 0; q < p.receive.sources.size(); ++q) p.hear(set, static_cast<int>(q));
  make_receive_plan(p.experts, {.plan = p.shape, .rank = p.rank}, p.receive);
  return p.receive.num_rows;
}

}  // namespace ubep::sim
