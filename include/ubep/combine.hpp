// Combine: expert outputs go back to their tokens as one sum per token.
#pragma once

#include "ubep/types.hpp"

namespace ubep {

struct CombineArgs {
  // Result, [num_tokens, hidden] of the dispatch, same dtype. Tokens without a valid expert get +0.
  Rows out;
  // Expert outputs. Empty: they were written into Handle::expert_output(). Otherwise a tensor of
  // the caller's: [num_rows, hidden] by received row; with Weighting::owner [expert rows, hidden]
  // in the order of Received::expert_rows.
  ConstRows y = {};
};

}  // namespace ubep
