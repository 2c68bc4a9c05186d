// Counts what a thread asks of the heap, of locks and of the kernel.
//
// The functions of the heap and of pthread's locks are replaced in this program: its definitions
// come before those of the C library, for libstdc++ and {fmt}, too. System calls are trapped by a
// seccomp filter, counted in the signal's handler and made there. Waiter::idle() is replaced at
// link time (--wrap), so that what a long wait does can be told from what nobody should do.
#pragma once

#include <cstdint>

namespace ubep::test {

struct Watched {
  std::uint64_t heap_calls = 0;    // malloc, calloc, realloc, free, ..., and with them new, delete
  std::uint64_t lock_calls = 0;    // pthread's mutexes, rwlocks, spin locks, conditions; semaphores
  std::uint64_t system_calls = 0;  // but clock_gettime, and those of the waiter
  std::uint64_t waiter_calls = 0;  // system calls within Waiter::idle()
  std::uint64_t clock_calls = 0;   // clock_gettime: none where the vDSO can tell the time
  long last_call = -1;             // number of the last of `system_calls`
  std::uint64_t idle = 0;          // calls of Waiter::idle()
  bool look_advised = false;       // the waiter advised a look for losses: system calls follow
};

// From now on the system calls of this thread, and of those that it starts, are trapped, but for
// fork and its kin and the end of a process. There is no way back: call it in a process of its own.
// False where there are no such filters: on an old kernel, in an emulator.
bool trap_system_calls();

// Of this thread, from now on.
void start_watching();
Watched stop_watching();

}  // namespace ubep::test
