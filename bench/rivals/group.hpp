// The ranks of one run, and memory that all of them see.
//
// Purpose: what a hand-written rival needs beside the library's own kernels: shared areas, flags
// and a wait that gives the core away when ranks outnumber cores. Not for: surviving a rank's
// death.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/word.hpp"
#include "tools/ubep/stage.hpp"
#include "ubep/ubep.hpp"

namespace ubep::rivals {

struct Shape {
  std::vector<int> tokens;  // [ranks]
  int hidden = 0;
  int topk = 0;
  std::vector<std::int32_t> expert_rank;  // [E] owner, in blocks

  int ranks() const { return static_cast<int>(tokens.size()); }
  int max_tokens() const {
    int most = 0;
    for (int t : tokens) most = t > most ? t : most;
    return most;
  }
  int total_tokens() const {
    int total = 0;
    for (int t : tokens) total += t;
    return total;
  }
  std::size_t row_bytes() const { return static_cast<std::size_t>(hidden) * 2; }  // bf16
};

// That this process may run on.
inline int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Rank `rank` of a run. Shared memory is handed out from the front: every rank must ask for the
// same areas in the same order. Where ranks are on several hosts there is none.
class Group {
 public:
  Group(const Bootstrap& bootstrap, tools::Stage& stage, std::byte* shared, std::size_t bytes)
      : bootstrap_(bootstrap), stage_(&stage), next_(shared), end_(shared + bytes) {}

  int rank() const { return bootstrap_.rank; }
  int size() const { return bootstrap_.size; }
  const Bootstrap& bootstrap() const { return bootstrap_; }
  tools::Stage& stage() const { return *stage_; }
  bool spans_hosts() const { return stage_->hosts() != nullptr; }

  // Zeros, on a page of its own, the same in all ranks.
  std::byte* allocate(std::size_t bytes) {
    std::byte* area = next_;
    next_ += (bytes + kPage - 1) / kPage * kPage;
    if (next_ > end_) throw std::runtime_error("the shared memory of the run is used up");
    return area;
  }

 private:
  static constexpr std::size_t kPage = 4096;
  Bootstrap bootstrap_;
  tools::Stage* stage_;
  std::byte* next_;
  std::byte* end_;
};

// One flag per (rank, rank), each on a line of its own: `of(q, r)` is stored by q for r.
class Flags {
 public:
  explicit Flags(Group& group)
      : ranks_(static_cast<std::size_t>(group.size())),
        words_(group.allocate(ranks_ * ranks_ * 64)),
        stage_(&group.stage()),
        spins_(group.size() <= cores() ? 2000 : 2) {}

  void set(int from, int to, std::uint64_t value) const {
    // publishes: the rows that `from` stored before, to wait(); without it `to` would read old
    // ones.
    word(from, to).store_release(value);
  }
  void set_for_all(int from, std::uint64_t value) const {
    for (std::size_t to = 0; to < ranks_; ++to) set(from, static_cast<int>(to), value);
  }
  void wait(int from, int to, std::uint64_t value) const {
    // acquires: the rows that `from` stored before its set().
    for (int spin = 0; word(from, to).load_acquire() < value; ++spin) {
      if (spin < spins_) {
        cpu_relax();
        continue;
      }
      sched_yield();
      if ((spin - spins_) % 1024 == 1023) look_up(from, spin - spins_);
    }
  }

 private:
  // A rank that stands still would be waited for without end.
  void look_up(int from, int yields) const {
    if (stage_->failed()) throw std::runtime_error("another rank failed");
    if (yields < 1024) since_ = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - since_ < kPatience) return;
    stage_->fail(tools::kTimeout, "timeout: rank " + std::to_string(from) + " does not go on");
    throw std::runtime_error("a wait took too long");
  }
  SharedWord word(int from, int to) const {
    return SharedWord(
        words_ + (static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to)) * 64);
  }

  static constexpr std::chrono::seconds kPatience{20};
  mutable std::chrono::steady_clock::time_point since_;
  std::size_t ranks_;
  std::byte* words_;
  tools::Stage* stage_;
  int spins_;
};

}  // namespace ubep::rivals
