#include "sim/guarded_copies.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "base/invariant.hpp"
#include "base/math.hpp"

namespace ubep::sim {
namespace {

constexpr std::size_t kPages = 16384;

std::size_t pages_of(std::uint64_t bytes) {
  return static_cast<std::size_t>(round_up(std::max<std::uint64_t>(bytes, 1), kPageBytes) /
                                  kPageBytes);
}

}  // namespace

GuardedCopies& GuardedCopies::all() {
  thread_local GuardedCopies copies;
  return copies;
}

GuardedCopies::Arena& GuardedCopies::add_arena(std::size_t count) {
  const std::size_t pages = std::max(kPages, count);
  void* area = mmap(nullptr, pages * kPageBytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) broken_invariant("no room for guarded copies");
  return arenas_.emplace_back(Arena{static_cast<std::byte*>(area), std::vector<bool>(pages), 0});
}

// The first page of a run of free ones, behind those that were used last; null when there is none.
std::byte* GuardedCopies::take(Arena& arena, std::size_t count) {
  const std::size_t pages = arena.used.size();
  std::size_t run = 0;
  for (std::size_t tried = 0; tried < 2 * pages; ++tried, ++arena.next) {
    if (arena.next == pages) arena.next = run = 0;
    run = arena.used[arena.next] ? 0 : run + 1;
    if (run < count) continue;
    const std::size_t first = ++arena.next - count;
    std::fill_n(arena.used.begin() + static_cast<std::ptrdiff_t>(first), count, true);
    return arena.pages + first * kPageBytes;
  }
  return nullptr;
}

std::byte* GuardedCopies::make(std::uint64_t bytes) {
  const std::size_t count = pages_of(bytes);
  std::byte* page = nullptr;
  if (!arenas_.empty()) page = take(arenas_.back(), count);
  if (page == nullptr) page = take(add_arena(count), count);
  if (mprotect(page, count * kPageBytes, PROT_READ | PROT_WRITE) != 0) {
    broken_invariant("guarded copies: mprotect failed");
  }
  std::fill_n(page, count * kPageBytes, std::byte{0xff});  // a NaN, an index beyond every list
  return page + count * kPageBytes - round_up(bytes, kLineBytes);
}

void GuardedCopies::drop(std::byte* copy, std::uint64_t bytes) {
  const std::size_t count = pages_of(bytes);
  std::byte* page = copy + round_up(bytes, kLineBytes) - count * kPageBytes;
  if (mprotect(page, count * kPageBytes, PROT_NONE) != 0) {
    broken_invariant("guarded copies: mprotect failed");
  }
  const auto arena = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& a) {
    return page >= a.pages && page < a.pages + a.used.size() * kPageBytes;
  });
  const auto first = (page - arena->pages) / static_cast<std::ptrdiff_t>(kPageBytes);
  std::fill_n(arena->used.begin() + first, count, false);
}

}  // namespace ubep::sim
