// How far apart two ranks' CPUs are: a flag goes back and forth between two pinned processes.
#pragma once

#include <chrono>

#include "fabric/shm/segment.hpp"
#include "ubep/types.hpp"

namespace ubep {

// Word of a segment's fabric header that the probe uses; `state` is word 0.
inline constexpr std::uint64_t kStateOffset = 0;
inline constexpr std::uint64_t kProbeOffset = 64;

// First and last CPU that this thread may run on; -1 where there is none other than `not_this`.
int first_cpu();
int last_cpu_but(int not_this);

// Pins the calling thread to one CPU for its lifetime.
class PinnedTo {
 public:
  explicit PinnedTo(int cpu);
  ~PinnedTo();
  PinnedTo(const PinnedTo&) = delete;
  PinnedTo& operator=(const PinnedTo&) = delete;

 private:
  void* saved_;
};

struct PingPong {
  bool starter = false;     // leads
  std::uint64_t first = 1;  // flag value, larger than any that the two words held before
  int batches = 15;         // of 20 rounds; the median of the batches counts
  std::chrono::microseconds patience{10'000};
};

// One side of the ping-pong: `mine` is written, `theirs` awaited. Returns the median one-way time
// in ns, or 0 when the other side did not answer in time.
double ping_pong_ns(std::byte* mine, const std::byte* theirs, const PingPong& game);
inline constexpr std::uint64_t kFlagsPerProbe = 1000;  // values that one game takes at most

Placement classify(double one_way_ns);

}  // namespace ubep
