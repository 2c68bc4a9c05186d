#include "counting/kernels.hpp"

#include <cstddef>

#include "engine/waiter.hpp"

namespace ubep::test {
namespace {

thread_local bool counting = false;
thread_local std::uint64_t bytes_of_a_row = 0;
thread_local KernelCounts counts;

}  // namespace

void start_counting(std::uint64_t row_bytes) {
  counts = {};
  bytes_of_a_row = row_bytes;
  counting = true;
}

KernelCounts stop_counting() {
  counting = false;
  return counts;
}

}  // namespace ubep::test

// What the linker calls instead, and the originals under the names that it gives them.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's names
void __real__ZN4ubep10copy_plainEPSt4bytePKS0_m(std::byte*, const std::byte*, std::size_t);
void __real__ZN4ubep14copy_streamingEPSt4bytePKS0_m(std::byte*, const std::byte*, std::size_t);
ubep::Waiter::Advice __real__ZN4ubep6Waiter4idleEv(ubep::Waiter*);
void* __real_memcpy(void*, const void*, std::size_t);

void __wrap__ZN4ubep10copy_plainEPSt4bytePKS0_m(std::byte* to, const std::byte* from,
                                                std::size_t bytes) {
  using namespace ubep::test;
  if (counting && bytes == bytes_of_a_row) {
    counts.plain_bytes += bytes;
    ++counts.plain_rows;
  }
  __real__ZN4ubep10copy_plainEPSt4bytePKS0_m(to, from, bytes);
}

void __wrap__ZN4ubep14copy_streamingEPSt4bytePKS0_m(std::byte* to, const std::byte* from,
                                                    std::size_t bytes) {
  if (ubep::test::counting && bytes == ubep::test::bytes_of_a_row) {
    ubep::test::counts.streaming_bytes += bytes;
  }
  __real__ZN4ubep14copy_streamingEPSt4bytePKS0_m(to, from, bytes);
}

ubep::Waiter::Advice __wrap__ZN4ubep6Waiter4idleEv(ubep::Waiter* waiter) {
  if (ubep::test::counting) ++ubep::test::counts.idle;
  return __real__ZN4ubep6Waiter4idleEv(waiter);
}

void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  if (ubep::test::counting && bytes == ubep::test::bytes_of_a_row) ++ubep::test::counts.memcpy_rows;
  return __real_memcpy(to, from, bytes);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}
