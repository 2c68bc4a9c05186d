// Counts what goes through the library's copy kernels and waiter. The linker replaces their symbols
// in this program (--wrap), so the library's own code is counted as it is.
#pragma once

#include <cstdint>

namespace ubep::test {

struct KernelCounts {
  std::uint64_t plain_bytes = 0;      // copy_plain()
  std::uint64_t streaming_bytes = 0;  // copy_streaming()
  std::uint64_t memcpy_rows = 0;      // calls of memcpy() with exactly the bytes of a row
  std::uint64_t plain_rows = 0;       // calls of copy_plain() with them
  std::uint64_t idle = 0;             // Waiter::idle()

  std::uint64_t copied_bytes() const { return plain_bytes + streaming_bytes; }
};

// Of this thread, from now on: rows are of `row_bytes`.
void start_counting(std::uint64_t row_bytes);
KernelCounts stop_counting();

}  // namespace ubep::test
