#include "memory/private_rows.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "base/system_limits.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugeFrom = kHugePage / 2;  // smaller areas would waste more than they win

}  // namespace

std::size_t PrivateRows::reserved_bytes(std::size_t bytes) {
  return bytes < kHugeFrom ? bytes : (bytes + 2 * kHugePage - 1) / kHugePage * kHugePage;
}

PrivateRows::PrivateRows(std::size_t bytes, Use use)
    : mapped_bytes_(use == Use::dense ? reserved_bytes(bytes) : bytes), pid_(getpid()) {
  if (bytes == 0) return;
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw Error(ErrorCode::setup, "cannot reserve " + std::to_string(bytes) +
                                      " bytes of private rows: " + explain(errno));
  }
  data_ = static_cast<std::byte*>(mapped_);
  madvise(mapped_, mapped_bytes_, MADV_DONTFORK);
  if (use == Use::sparse || bytes < kHugeFrom) return;
  // One page for hundreds of rows, that lie in the caches side by side. Only advice.
  data_ += (kHugePage - reinterpret_cast<std::uintptr_t>(data_) % kHugePage) % kHugePage;
  madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);
}

PrivateRows::~PrivateRows() {
  if (mapped_ != nullptr && pid_ == getpid()) munmap(mapped_, mapped_bytes_);
}

PrivateRows::PrivateRows(PrivateRows&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      pid_(other.pid_) {}

PrivateRows& PrivateRows::operator=(PrivateRows&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(pid_, other.pid_);
  return *this;
}

}  // namespace ubep
