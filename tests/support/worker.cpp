#include "support/worker.hpp"

#include <algorithm>
#include <thread>

#include "support/compare.hpp"
#include "support/experts.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

// `topk` different experts for one token.
std::vector<std::int32_t> choose_experts(const Problem& problem, Random& random) {
  std::vector<std::int32_t> all;
  for (int id = 0; id < problem.num_experts; ++id) all.push_back(id);
  for (int k = 0; k < problem.topk; ++k) {
    std::swap(all[index(k)], all[index(random.between(k, problem.num_experts - 1))]);
  }
  all.resize(index(problem.topk));
  return all;
}

}  // namespace

Problem make_problem(const ProblemShape& shape) {
  Random random(shape.seed);
  Problem problem;
  problem.num_experts = shape.ranks * shape.experts_per_rank;
  problem.dtype = shape.dtype;
  problem.hidden = shape.hidden;
  problem.topk = std::min(shape.topk, problem.num_experts);
  problem.layout = shape.layout;
  problem.function = ExpertFunction::square_plus;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankInput input;
    input.tokens = shape.tokens;
    input.x.resize(index(shape.tokens) * index(shape.hidden) * size_of(shape.dtype));
    for (std::size_t i = 0; i < input.x.size(); i += size_of(shape.dtype)) {
      store_bits(shape.dtype, round_to(shape.dtype, random.uniform()), input.x.data() + i);
    }
    for (int token = 0; token < shape.tokens; ++token) {
      for (const std::int32_t id : choose_experts(problem, random)) {
        input.topk_idx.push_back(id);
        input.topk_weights.push_back(random.uniform());
      }
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

CommunicatorOptions options_for(const Problem& problem) {
  std::int64_t most = 0;
  for (const RankInput& input : problem.ranks) most = std::max(most, input.tokens);
  return {.num_experts = problem.num_experts,
          .expert_rank = problem.expert_rank,
          .max_tokens = static_cast<int>(most),
          .max_hidden = problem.hidden,
          .max_dtype = problem.dtype,
          .max_topk = problem.topk,
          .expert_capacity = problem.expert_capacity,
          .bsp = true,
          .timeout = std::chrono::seconds(30)};
}

Worker::Worker(const Problem& problem, int rank, const DispatchOptions& options)
    : problem_(problem), rank_(rank), options_(options) {
  options_.layout = problem.layout;
  options_.topk1 = problem.topk1;
  options_.reduction = problem.reduction;
  options_.expert_alignment = problem.expert_alignment;
  options_.expert_capacity = problem.expert_capacity;
}

ConstRows Worker::x() const {
  const RankInput& input = problem_.ranks[index(rank_)];
  return {input.x.data(), input.tokens, problem_.hidden, problem_.dtype};
}

Routing Worker::routing() const {
  const RankInput& input = problem_.ranks[index(rank_)];
  return {input.topk_idx, input.topk_weights, problem_.topk};
}

Status Worker::dispatch(Communicator& comm) {
  return comm.dispatch(x(), routing(), options_, handle);
}
Status Worker::start_dispatch(Communicator& comm) {
  return comm.start_dispatch(x(), routing(), options_, handle);
}
Status Worker::start_dispatch_when_ready(Communicator& comm) {
  for (;;) {
    const Status status = start_dispatch(comm);
    if (status.code != Code::not_ready) return status;
    if (comm.step() == 0) std::this_thread::yield();
  }
}
Status Worker::start_dispatch(Communicator& comm, const Handle& cached) {
  return comm.start_dispatch(x(), cached, handle);
}

CombineArgs Worker::prepare_combine() {
  run_experts(handle.received(), problem_, rank_, options_.weighting, handle.expert_output());
  const RankInput& input = problem_.ranks[index(rank_)];
  out_.assign(input.x.size(), std::byte{0xff});
  return {.out = {out_.data(), input.tokens, problem_.hidden, problem_.dtype}};
}

Status Worker::combine(Communicator& comm) { return comm.combine(handle, prepare_combine()); }
Status Worker::start_combine(Communicator& comm) {
  return comm.start_combine(handle, prepare_combine());
}

std::string Worker::received_difference() const {
  Problem problem = problem_;
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - problem.ranks.size());
  const std::uint64_t here = handle.received().sources & all;
  // Rows of a source that was lost are absent, or zero when it had announced them.
  std::string first;
  std::uint64_t zeroed = 0;
  do {
    problem.sources = here | zeroed;
    problem.zeroed = zeroed;
    const std::string difference =
        compare_received(handle.received(), expected_received(problem, rank_), problem);
    if (difference.empty()) return "";
    if (first.empty()) first = difference;
    zeroed = (zeroed - (all & ~here)) & all & ~here;  // the next subset
  } while (zeroed != 0);
  return first;
}

std::string Worker::out_difference(std::uint64_t lost, std::uint64_t untrusted) const {
  const auto shown = handle.valid_tokens();
  std::vector<std::uint8_t> valid(shown.begin(), shown.end());
  const RankInput& input = problem_.ranks[index(rank_)];
  if (std::ssize(valid) != input.tokens) return "valid_tokens: wrong size";
  const std::vector<std::int32_t> owners = owners_of(problem_);
  for (std::int64_t token = 0; token < input.tokens; ++token) {
    bool may_be_invalid = false;
    bool may_be_wrong = false;
    for (int k = 0; k < problem_.topk; ++k) {
      const std::int32_t id = input.topk_idx[index(token * problem_.topk + k)];
      may_be_invalid = may_be_invalid || (id >= 0 && (lost >> owners[index(id)] & 1) != 0);
      may_be_wrong = may_be_wrong || (id >= 0 && (untrusted >> owners[index(id)] & 1) != 0);
    }
    if (valid[index(token)] == 0 && !may_be_invalid) {
      return "valid_tokens[" + std::to_string(token) + "]: 0 though all its experts are alive";
    }
    if (may_be_wrong) valid[index(token)] = 0;
  }
  std::vector<std::byte> copy = out_;
  const Rows out{copy.data(), input.tokens, problem_.hidden, problem_.dtype};
  return compare_out(out, expected_out(problem_, rank_), valid);
}

std::string Worker::round(Communicator& comm) {
  const Status dispatched = dispatch(comm);
  if (!dispatched.ok()) return dispatched.message();
  const std::string difference = received_difference();
  if (!difference.empty()) return difference;
  const Status combined = combine(comm);
  if (!combined.ok()) return combined.message();
  return out_difference();
}

}  // namespace ubep::test
