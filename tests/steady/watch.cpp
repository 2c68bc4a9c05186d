#include "steady/watch.hpp"

#include "engine/waiter.hpp"
#include "steady/watch_state.hpp"

namespace ubep::test {

thread_local WatchState watch_state;

void start_watching() { watch_state = {.on = true}; }

Watched stop_watching() {
  watch_state.on = false;
  return watch_state.seen;
}

}  // namespace ubep::test

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's names
ubep::Waiter::Advice __real__ZN4ubep6Waiter4idleEv(ubep::Waiter*);

ubep::Waiter::Advice __wrap__ZN4ubep6Waiter4idleEv(ubep::Waiter* waiter) {
  ubep::test::WatchState& state = ubep::test::watch_state;
  ++state.seen.idle;
  state.in_waiter = true;
  const ubep::Waiter::Advice advice = __real__ZN4ubep6Waiter4idleEv(waiter);
  state.in_waiter = false;
  if (advice != ubep::Waiter::Advice::again) state.seen.look_advised = true;
  return advice;
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}
