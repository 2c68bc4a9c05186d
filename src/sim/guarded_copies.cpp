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

GuardedCopies::GuardedCopies() : used_(kPages) {
  void* area = mmap(nullptr, kPages * kPageBytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) broken_invariant("no room for guarded copies");
  pages_ = static_cast<std::byte*>(area);
}

GuardedCopies& GuardedCopies::all() {
  static GuardedCopies copies;
  return copies;
}

std::byte* GuardedCopies::make(std::uint64_t bytes) {
  const std::size_t count = pages_of(bytes);
  std::size_t run = 0;
  for (std::size_t tried = 0; tried < 2 * kPages; ++tried, ++next_) {
    if (next_ == kPages) next_ = run = 0;
    run = used_[next_] ? 0 : run + 1;
    if (run < count) continue;
    const std::size_t first = next_ + 1 - count;
    std::fill_n(used_.begin() + static_cast<std::ptrdiff_t>(first), count, true);
    std::byte* page = pages_ + first * kPageBytes;
    if (mprotect(page, count * kPageBytes, PROT_READ | PROT_WRITE) != 0) {
      broken_invariant("guarded copies: mprotect failed");
    }
    std::fill_n(page, count * kPageBytes, std::byte{0xff});  // a NaN, an index beyond every list
    ++next_;
    return page + count * kPageBytes - round_up(bytes, kLineBytes);
  }
  broken_invariant("more guarded copies at once than there is room for");
}

void GuardedCopies::drop(std::byte* copy, std::uint64_t bytes) {
  const std::size_t count = pages_of(bytes);
  std::byte* page = copy + round_up(bytes, kLineBytes) - count * kPageBytes;
  if (mprotect(page, count * kPageBytes, PROT_NONE) != 0) {
    broken_invariant("guarded copies: mprotect failed");
  }
  const auto first = (page - pages_) / static_cast<std::ptrdiff_t>(kPageBytes);
  std::fill_n(used_.begin() + first, count, false);
}

}  // namespace ubep::sim
