// What is refused when a layer is run on a pod.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/layer_run.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {

// The message of the error; "" when there is none.
inline std::string error_of(const LayerOptions& options) {
  try {
    (void)run_layer(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

}  // namespace ubep::sim
