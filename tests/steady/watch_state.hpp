// What the replaced functions share.
#pragma once

#include "steady/watch.hpp"

namespace ubep::test {

struct WatchState {
  bool on = false;
  bool in_waiter = false;
  Watched seen = {};
};

extern thread_local WatchState watch_state;

}  // namespace ubep::test
