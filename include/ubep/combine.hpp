// Combine: expert outputs go back to their tokens as one sum per token.
#pragma once

#include <array>

#include "ubep/types.hpp"

namespace ubep {

struct CombineArgs {
  // Result, [num_tokens of the dispatch, hidden]; hidden and dtype are those of y, which it must
  // not overlap. Tokens without a valid expert get +0.
  Rows out;
  // Expert outputs. Empty: they were written into Handle::expert_output(). Otherwise a tensor of
  // the caller's: [num_rows, hidden] by received row; with Weighting::owner [expert rows, hidden]
  // in the order of Received::expert_rows. It may be of another hidden and dtype than the dispatch
  // (the same on all ranks; at most a row of the communicator).
  ConstRows y = {};
  // Plain sums, where the top-k weights would be applied: the gradient of a dispatch. The same on
  // all ranks.
  bool unweighted = false;
  // expert layouts, not bsp: outputs are not complete yet; Communicator::publish() announces each
  // local expert's once they are. Only with start_combine(); after a dispatch with in_place only
  // with outputs that are written in place, since others would overwrite rows of other experts.
  // Handle::received() and expert_output() may be called until the last expert is published.
  // This rank's own affair.
  bool by_expert = false;
  // Added to the sums, after the experts' rows and before the one rounding: a bias, the output of
  // shared experts. Each [num_tokens, hidden] of out's dtype, or empty. This rank's own affair.
  std::array<ConstRows, 2> added = {};
};

}  // namespace ubep
