// What planning costs for 128 tokens x top-8: the schedule of 48 lanes beside the send plan.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/distances.hpp"
#include "plan/schedule.hpp"
#include "plan/send_plan.hpp"

namespace ubep {
namespace {

constexpr int kTokens = 128;
constexpr int kTopk = 8;
constexpr int kRanks = 64;
constexpr int kSelf = 21;
constexpr int kLanes = 48;

// expert_major on 64 ranks in nodes of 8; the experts of each token are spread evenly at random.
struct Workload {
  ExpertMap experts;
  std::vector<std::int32_t> topk_idx;
  std::vector<float> topk_weights;
  Destinations to;
  SendPlan plan;
  Schedule schedule;
  PlanShape shape{.layout = Layout::expert_major, .reduction = Reduction::exact, .topk = kTopk};

  explicit Workload(int num_experts) : experts(block_map(num_experts, kRanks), kRanks) {
    std::uint64_t random = 1;
    for (int i = 0; i < kTokens * kTopk; ++i) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      topk_weights.push_back(0.125F);
      topk_idx.push_back(
          static_cast<std::int32_t>((random >> 33) % static_cast<std::uint64_t>(num_experts)));
    }
    const Distances far = distances_of_groups(std::array{8, kRanks}, kRanks);
    make_destinations(experts, far.from(kSelf), {.self = kSelf, .by_expert = true}, to);
    make_plan();
    make_order(to, {.lanes = kLanes}, schedule);
    count_rows(plan.group_rows, schedule);
  }
  void make_plan() {
    make_send_plan(
        {.topk_idx = topk_idx, .topk_weights = topk_weights, .num_tokens = kTokens, .topk = kTopk},
        experts, shape, kSelf, plan);
  }
};

void each_slice(const Schedule& schedule, std::span<ScheduleSlice> slices) {
  for (std::uint32_t lane = 0; lane < slices.size(); ++lane) {
    slices[lane] = schedule.slice(lane, static_cast<std::uint32_t>(slices.size()));
  }
}

void send_plan(benchmark::State& state) {
  Workload w(static_cast<int>(state.range(0)));
  for (auto _ : state) w.make_plan();
}

// Order, prefix sums, and all lanes' searches, one by one or at once.
template <auto kSlices>
void mapper(benchmark::State& state) {
  Workload w(static_cast<int>(state.range(0)));
  std::array<ScheduleSlice, kLanes> slices;
  for (auto _ : state) {
    make_order(w.to, {.lanes = kLanes}, w.schedule);
    count_rows(w.plan.group_rows, w.schedule);
    kSlices(w.schedule, slices);
    benchmark::DoNotOptimize(slices);
  }
}

// The same when the order is kept from the dispatch before.
template <auto kSlices>
void mapper_kept_order(benchmark::State& state) {
  Workload w(static_cast<int>(state.range(0)));
  std::array<ScheduleSlice, kLanes> slices;
  for (auto _ : state) {
    count_rows(w.plan.group_rows, w.schedule);
    kSlices(w.schedule, slices);
    benchmark::DoNotOptimize(slices);
  }
}

void one_slice(benchmark::State& state) {
  Workload w(static_cast<int>(state.range(0)));
  std::uint32_t lane = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(w.schedule.slice(lane, kLanes));
    if (++lane == kLanes) lane = 0;
  }
}

std::uint32_t four_way(std::span<const std::uint32_t> begin, std::uint32_t row) {
  return find_place(begin, row);
}

std::uint32_t binary(std::span<const std::uint32_t> begin, std::uint32_t row) {
  return static_cast<std::uint32_t>(std::upper_bound(begin.begin(), begin.end(), row) -
                                    begin.begin() - 1);
}

// One after another, for rows that no branch predictor can learn.
template <auto kFind>
void search(benchmark::State& state) {
  const Workload w(static_cast<int>(state.range(0)));
  std::uint32_t random = 1;
  for (auto _ : state) {
    random = random * 1664525U + 1013904223U;
    const std::uint32_t row = part_begin(w.schedule.num_rows(), random >> 16, 1U << 16);
    const std::uint32_t place = kFind(w.schedule.begin, row);
    random += place;
    benchmark::DoNotOptimize(random);
  }
}

BENCHMARK(search<four_way>)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK(search<binary>)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK(send_plan)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK(mapper<make_slices>)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK(mapper<each_slice>)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK(mapper_kept_order<make_slices>)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK(mapper_kept_order<each_slice>)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK(one_slice)->Arg(64)->Arg(256)->Arg(1024);

}  // namespace
}  // namespace ubep
