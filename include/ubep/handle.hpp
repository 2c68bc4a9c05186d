// A handle is what dispatch returns and combine needs: routing and plan in private memory.
//
// While its *lease* lasts (from dispatch to combine or release()) it also holds one slot of the
// communicator, which the received views point into. A handle outlives its lease and can start
// further dispatches with the same routing (`Communicator::start_dispatch(x, cached, handle)`).
// Passing a used handle to a new dispatch reuses its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ubep/dispatch.hpp"
#include "ubep/export.hpp"
#include "ubep/stats.hpp"
#include "ubep/types.hpp"

namespace ubep {

namespace detail {
struct HandleState;
}

class UBEP_API Handle {
 public:
  Handle();
  ~Handle();  // ends the lease as release() does
  Handle(Handle&&) noexcept;
  Handle& operator=(Handle&&) noexcept;

  // Received rows. Throws Error{misuse} unless the dispatch is complete, or is by expert and the
  // first expert's rows are here, and its combine has not started, or is by expert.
  const Received& received() const;

  // Expert layouts: the top-k weight of each received row [num_rows], 0 of rows that nobody sent.
  // What the gradient of an expert's output needs; combine applies the weights itself. Made when
  // asked for. Throws as received() does, and of rank_major (Received::topk_weights).
  std::span<const float> row_weights();

  // Expert layouts and topk1: which of its token's choices each received row is, k in 0..topk-1
  // [num_rows], -1 of rows that nobody sent. With it the gradient of a top-k weight finds its way
  // home (docs/training.md). Made when asked for. Throws as received() does, and of rank_major
  // without topk1, whose rows have several (the columns of Received::topk_idx).
  std::span<const std::int32_t> row_choices();

  // Where the caller writes expert outputs: [num_rows, hidden] by received row, in the dtype of the
  // dispatch; with Weighting::owner [expert rows, hidden] in the order of Received::expert_rows.
  // Near it lies in shared memory and nothing is copied afterwards. Throws as received() does.
  Rows expert_output();

  // After combine: [num_tokens], 1 = every chosen expert of the token contributed. Tokens whose
  // experts were lost with a peer have 0.
  std::span<const std::uint8_t> valid_tokens() const;

  // Of the latest dispatch; the bytes copied once it, and its combine, are complete.
  OperationStats stats() const;

  bool holds_lease() const;
  std::uint64_t epoch() const;  // of the latest dispatch; 0 = never dispatched

 private:
  friend class Communicator;
  std::unique_ptr<detail::HandleState> state_;
};

}  // namespace ubep
