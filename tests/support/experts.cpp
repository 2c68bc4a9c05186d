#include "support/experts.hpp"

#include <vector>

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

Expert expert_of(const Problem& problem) {
  return {problem.function, problem.dtype, problem.hidden, problem.output_dtype(),
          problem.output_hidden()};
}

}  // namespace

void run_expert(const Received& received, const Problem& problem, const LocalExpert& expert,
                const Rows& y) {
  const bool indirect = problem.layout == Layout::rank_major;
  const std::int32_t id = experts_of(problem, expert.rank)[index(expert.local)];
  for (std::int32_t j = 0; j < received.expert_counts[index(expert.local)]; ++j) {
    const std::int64_t place = received.expert_offsets[index(expert.local)] + j;
    const std::int64_t row = indirect ? received.expert_rows[index(place)] : place;
    const std::vector<std::byte> x = values_of(problem, received.row(row));
    expert_of(problem).apply(id, x.data(), y.row(place));
  }
}

void run_experts(const Received& received, const Problem& problem, int rank, Weighting weighting,
                 const Rows& y) {
  const std::vector<std::int32_t> experts = experts_of(problem, rank);
  if (problem.layout != Layout::rank_major || weighting == Weighting::owner) {
    for (int e = 0; e < std::ssize(experts); ++e) run_expert(received, problem, {rank, e}, y);
    return;
  }
  const Expert expert = expert_of(problem);
  const std::int64_t choices = problem.topk1 ? 1 : problem.topk;
  for (std::int64_t i = 0; i < received.num_rows; ++i) {
    std::vector<float> sum(index(problem.output_hidden()), 0.0F);
    const std::vector<std::byte> x = values_of(problem, received.row(i));
    for (std::int64_t choice = i * choices; choice < (i + 1) * choices; ++choice) {
      const std::int32_t local = received.topk_idx[index(choice)];
      if (local < 0) continue;
      const float weight = problem.unweighted ? 1.0F : received.topk_weights[index(choice)];
      expert.accumulate(experts[index(local)], weight, x.data(), sum.data());
    }
    expert.round(sum.data(), y.row(i));
  }
}

}  // namespace ubep::test
