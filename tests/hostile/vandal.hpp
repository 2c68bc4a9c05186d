// A rank that writes what it likes: into all of its segment, and into every inbox that it can
// write.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/group_config.hpp"
#include "protocol/segment_layout.hpp"
#include "support/random.hpp"

namespace ubep::test {

// What is written into.
enum class Target : std::uint8_t { words, op_lines, records, rows, inboxes, everything };
inline constexpr std::size_t kTargets = 6;
const char* name(Target target);

struct Mischief {
  Target target = Target::everything;
  int pause_us = 100;  // most of it between two strokes; 0 = none
  int delay_us = 0;    // before the first
  int strokes = 1;     // -1 = until the end
  bool rough = false;  // random bytes more often than values that could be right
  std::uint64_t seed = 1;
};

Mischief make_mischief(Target target, Random& random);

// Strokes from a thread of its own, at random moments, from the time on at which the rank's memory
// is there. One communicator of this process at a time.
class Vandal {
 public:
  Vandal(const GroupConfig& config, int rank, const Mischief& mischief);
  ~Vandal() { stop(); }
  Vandal(const Vandal&) = delete;
  Vandal& operator=(const Vandal&) = delete;

  void start();
  void stop();
  // One stroke now, on the calling thread, if the memory is there.
  void strike();

 private:
  struct Area {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  bool find_memory();
  void run();
  void strike_at(Target target);
  void spoil_word();
  void spoil_op_line();
  void tell_lies(std::uint64_t offset);
  void spoil_record();
  void spoil_range(const Area& area, std::uint64_t most);
  void spoil_rows();
  std::uint64_t value_like(std::uint64_t now);
  void put_word(std::uint64_t offset);
  void put_number(std::uint64_t offset);

  GroupConfig config_;
  SegmentLayout layout_;
  int rank_;
  Mischief mischief_;
  Random random_;
  Area segment_;
  std::vector<Area> inboxes_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace ubep::test
