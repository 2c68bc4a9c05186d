// How much memory this process may still take before the kernel starts killing.
#pragma once

#include <cstdint>

namespace ubep {

// The least of MemAvailable and what its control groups leave; UINT64_MAX when neither can be read.
std::uint64_t available_memory_bytes();

// Throws Error{setup} when this process may not make a file that large: the kernel would end it.
void check_file_size(std::uint64_t bytes);

}  // namespace ubep
