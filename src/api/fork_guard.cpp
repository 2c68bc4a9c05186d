#include "api/fork_guard.hpp"

#include <pthread.h>

namespace ubep {
namespace {

int generation = 0;  // written in a child that has one thread

}  // namespace

int fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  (void)registered;
  return generation;
}

}  // namespace ubep
