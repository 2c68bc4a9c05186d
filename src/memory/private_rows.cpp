#include "memory/private_rows.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "ubep/status.hpp"

namespace ubep {

PrivateRows::PrivateRows(std::size_t bytes) : bytes_(bytes), pid_(getpid()) {
  if (bytes == 0) return;
  void* area = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) {
    throw Error(ErrorCode::setup, "cannot reserve " + std::to_string(bytes) +
                                      " bytes of private rows: " + std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(area);
  madvise(data_, bytes_, MADV_DONTFORK);
}

PrivateRows::~PrivateRows() {
  if (data_ != nullptr && pid_ == getpid()) munmap(data_, bytes_);
}

PrivateRows::PrivateRows(PrivateRows&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      pid_(other.pid_) {}

PrivateRows& PrivateRows::operator=(PrivateRows&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(pid_, other.pid_);
  return *this;
}

}  // namespace ubep
