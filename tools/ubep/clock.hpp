// The two clocks of a benchmark, in seconds.
#pragma once

#include <sys/resource.h>

#include <chrono>

namespace ubep::tools {

// Since an arbitrary start, the same for all processes of the host.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// That all threads of this process have had of the CPUs.
inline double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace ubep::tools
