// Copies that cannot be touched once they were given back: their pages lose all access and are used
// again as late as possible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ubep::sim {

class GuardedCopies {
 public:
  static GuardedCopies& all();  // one for the thread: fresh pages are slow

  // 64-byte aligned; the copy ends where its last page ends, to whole lines.
  std::byte* make(std::uint64_t bytes);
  void drop(std::byte* copy, std::uint64_t bytes);

 private:
  struct Arena {
    std::byte* pages = nullptr;
    std::vector<bool> used;
    std::size_t next = 0;
  };

  static std::byte* take(Arena& arena, std::size_t count);
  Arena& add_arena(std::size_t count);

  std::vector<Arena> arenas_;  // one is enough unless very many copies are held at once
};

}  // namespace ubep::sim
