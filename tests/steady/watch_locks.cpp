// Taking a lock: the C library's functions, counted. Conditions need none of their own: who waits
// for one has taken its mutex. <pthread.h>, which declares them otherwise, must not be included
// here.
#include <dlfcn.h>

#include <cstdlib>

#include "steady/watch_state.hpp"

namespace {

// Where the C library has `name`, which is looked up once; counts.
template <class Function>
Function* counted(Function*& known, const char* name) {
  if (ubep::test::watch_state.on) ++ubep::test::watch_state.seen.lock_calls;
  if (known == nullptr) known = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  if (known == nullptr) std::abort();
  return known;
}

}  // namespace

// NOLINTBEGIN(bugprone-macro-parentheses): a declarator's parentheses are in `parameters`
#define UBEP_COUNTED(name, parameters, arguments) \
  extern "C" int name parameters {                \
    static int(*known) parameters = nullptr;      \
    return counted(known, #name) arguments;       \
  }
// NOLINTEND(bugprone-macro-parentheses)

UBEP_COUNTED(pthread_mutex_lock, (void* lock), (lock))
UBEP_COUNTED(pthread_mutex_trylock, (void* lock), (lock))
UBEP_COUNTED(pthread_mutex_timedlock, (void* lock, const void* until), (lock, until))
UBEP_COUNTED(pthread_mutex_clocklock, (void* lock, int clock, const void* until),
             (lock, clock, until))
UBEP_COUNTED(pthread_rwlock_rdlock, (void* lock), (lock))
UBEP_COUNTED(pthread_rwlock_wrlock, (void* lock), (lock))
UBEP_COUNTED(pthread_rwlock_tryrdlock, (void* lock), (lock))
UBEP_COUNTED(pthread_rwlock_trywrlock, (void* lock), (lock))
UBEP_COUNTED(pthread_spin_lock, (void* lock), (lock))
UBEP_COUNTED(pthread_spin_trylock, (void* lock), (lock))
UBEP_COUNTED(sem_wait, (void* semaphore), (semaphore))
UBEP_COUNTED(sem_trywait, (void* semaphore), (semaphore))
