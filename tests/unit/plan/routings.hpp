// Random routings for the tests of the plans.
#pragma once

#include <cstdint>
#include <vector>

#include "base/group_config.hpp"
#include "plan/send_plan.hpp"
#include "plan/shape.hpp"
#include "support/random.hpp"

namespace ubep::test {

// One source's routing with its memory.
struct OwnedRouting {
  std::vector<std::int32_t> topk_idx;
  std::vector<float> topk_weights;
  std::uint32_t num_tokens = 0;
  int topk = 0;

  RoutingView view() const {
    return {
        .topk_idx = topk_idx, .topk_weights = topk_weights, .num_tokens = num_tokens, .topk = topk};
  }
  std::int32_t expert(std::uint32_t token, int k) const {
    return topk_idx[token * static_cast<std::size_t>(topk) + static_cast<std::size_t>(k)];
  }
  float weight(std::uint32_t token, int k) const {
    return topk_weights[token * static_cast<std::size_t>(topk) + static_cast<std::size_t>(k)];
  }
};

struct PlanCase {
  int ranks = 1;
  ExpertMap experts;
  PlanShape shape;
  std::vector<OwnedRouting> sources;  // [ranks]
};

inline OwnedRouting random_routing(int num_experts, int topk, Random& random) {
  OwnedRouting routing;
  routing.num_tokens = static_cast<std::uint32_t>(random.one_in(5) ? 0 : random.between(1, 30));
  routing.topk = topk;
  const int none_in = random.between(2, 6);
  for (std::uint32_t i = 0; i < routing.num_tokens * static_cast<std::uint32_t>(topk); ++i) {
    // Experts may repeat within a token.
    routing.topk_idx.push_back(random.one_in(none_in) ? -1 : random.below(num_experts));
    routing.topk_weights.push_back(random.uniform());
  }
  return routing;
}

inline PlanCase random_plan_case(std::uint64_t seed) {
  Random random(seed);
  PlanCase c;
  c.ranks = random.one_in(10) ? random.pick<int>({kMaxRanks, 65, 130}) : random.between(1, 6);
  std::vector<std::int32_t> owner;
  const int experts = random.between(1, 40);
  const int owners = random.between(1, c.ranks);
  for (int e = 0; e < experts; ++e) owner.push_back(c.ranks - 1 - random.below(owners));
  c.experts = ExpertMap(owner, c.ranks);
  c.shape.topk = random.one_in(10) ? kMaxTopk : random.between(1, 8);
  c.shape.layout = random.one_in(2) ? Layout::rank_major : Layout::expert_major;
  c.shape.topk1 = c.shape.layout == Layout::rank_major && random.one_in(2);
  const bool per_rank = c.shape.layout == Layout::rank_major || random.one_in(2);
  c.shape.reduction = per_rank ? Reduction::per_rank : Reduction::exact;
  for (int r = 0; r < c.ranks; ++r) {
    c.sources.push_back(random_routing(experts, c.shape.topk, random));
  }
  return c;
}

}  // namespace ubep::test
