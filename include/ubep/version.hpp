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

// What would carry tokens between hosts: "UCX 1.13.1", "not built" (the library was built without
// UCX), or "not found" and why. Loads UCX's library, for good.
UBEP_API std::string host_transport();

}  // namespace ubep
