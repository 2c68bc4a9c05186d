// Parts of the library one by one, as the engine calls them: copies, sums, the plans of a dispatch.
//
// Purpose: a probe times them on the machine it runs on, to describe it as a pod. Not for moving
// tokens: nothing here waits for, or tells, another rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ubep/types.hpp"

namespace ubep::sim {

// A row by a store policy, `far` or `near`; end_rows() before others are told of it.
void copy_row(Store store, std::byte* to, const std::byte* from, std::size_t bytes);
void end_rows();

// How a receiver stores so many bytes of rows of one source.
Store receiving_store(std::uint64_t bytes);

// out = the weighted sum of bf16 rows.
void sum_row(std::span<const std::byte* const> rows, const float* weights, std::size_t hidden,
             std::byte* out);

// One rank's choices.
struct RoutedTokens {
  std::vector<std::int32_t> topk_idx;
  std::vector<float> topk_weights;
};

// All that one rank plans in a dispatch by expert: where its rows go, the check of what its peers
// say of theirs, and where everything that it receives lies.
class Planner {
 public:
  // routing: [sets][ranks], each of `tokens` x `topk`.
  Planner(const std::vector<std::vector<RoutedTokens>>& routing, int rank, int experts, int topk);
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Returns the number of rows that the rank receives.
  std::int64_t plan(std::size_t set);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ubep::sim
