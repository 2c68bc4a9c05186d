// The library's version. Wire layouts carry their own number (docs/protocol.md).
#pragma once

#include <cstdint>

namespace ubep {

inline constexpr const char* kVersion = "0.1.0";

// Bumped whenever a word, a record or the rendezvous message changes its layout.
inline constexpr std::uint32_t kWireVersion = 1;

}  // namespace ubep
