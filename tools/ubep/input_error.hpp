// The one exception of the command `ubep` for what its user can put right.
//
// Purpose: a wrong option, file or value ends the command with exit code 2 and the one line of
// `what()`, which tells the value seen and the value expected.
// Not for: broken invariants and failures of the library (those have their own errors and codes).
//
//   if (topk > experts) throw InputError("--topk is 9 but there are only 8 experts");
#pragma once

#include <stdexcept>

namespace ubep::tools {

class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ubep::tools
