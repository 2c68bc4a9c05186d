// The library's version. Wire layouts carry their own number (docs/protocol.md).
#pragma once

#include <cstdint>
#include <string>

#include "ubep/export.hpp"

namespace ubep {

inline constexpr const char* kVersion = "0.1.0";

// Bumped whenever a word, a record or the rendezvous message changes its layout.
inline constexpr std::uint32_t kWireVersion = 7;

// The versions of the library in use (not of these headers), its commit, compiler, build type,
// sanitizers and instruction sets: three lines of text, for `ubep --version` and fault reports.
UBEP_API std::string build_facts();

}  // namespace ubep
