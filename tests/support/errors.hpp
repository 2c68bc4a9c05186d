// Expectations of ubep::Error.
//
//   expect_error(ErrorCode::misuse, {"handle", "epoch 1"}, [&] { (void)comm.combine(handle, args);
//   });
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ubep/status.hpp"

namespace ubep::test {

using Parts = std::vector<std::string>;

inline void expect_parts(const std::string& message, const Parts& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

// `call` throws Error{code}, and the text has all parts.
inline void expect_error(ErrorCode code, const Parts& parts, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    expect_parts(error.what(), parts);
  }
}

}  // namespace ubep::test
