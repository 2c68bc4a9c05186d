// What a process holds: compared before and after, to find what was left behind.
#pragma once

#include <cstdint>
#include <ostream>

namespace ubep::test {

struct Holdings {
  int descriptors = 0;
  int memory_files = 0;  // mappings of them
  int children = 0;

  bool operator==(const Holdings&) const = default;
};

inline void PrintTo(const Holdings& h, std::ostream* out) {  // NOLINT: gtest's name
  *out << h.descriptors << " descriptors, " << h.memory_files << " mapped memory files, "
       << h.children << " children";
}

Holdings holdings();
// A line of /proc/self/status in KiB, or in numbers: "VmRSS", "Threads".
std::int64_t status_line(const char* name);

}  // namespace ubep::test
