#include "fabric/shm/inbox.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fabric/shm/memory_limit.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const char* what, std::uint64_t bytes) {
  throw Error(ErrorCode::setup,
              fmt::format("inbox of {} bytes: {} failed: {}", bytes, what, std::strerror(errno)));
}

std::byte* map(int fd, std::uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) fail("mmap", bytes);
  madvise(data, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

}  // namespace

Inbox Inbox::create(std::uint64_t bytes) {
  Inbox inbox;
  inbox.bytes_ = bytes;
  inbox.pid_ = getpid();
  check_file_size(bytes);
  inbox.fd_ = memfd_create("ubep-inbox", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (inbox.fd_ < 0) fail("memfd_create", bytes);
  if (ftruncate(inbox.fd_, static_cast<off_t>(bytes)) != 0) fail("ftruncate", bytes);
  inbox.data_ = map(inbox.fd_, bytes);
  if (fcntl(inbox.fd_, F_ADD_SEALS, kSeals) != 0) fail("sealing", bytes);
  return inbox;
}

Inbox Inbox::attach(int fd, std::uint64_t bytes, int rank) {
  Inbox inbox;
  inbox.fd_ = fd;
  inbox.bytes_ = bytes;
  inbox.pid_ = getpid();
  struct stat info = {};
  if (fstat(fd, &info) != 0 || static_cast<std::uint64_t>(info.st_size) != bytes) {
    throw Error(ErrorCode::setup, fmt::format("inbox of rank {} has {} bytes, expected {}", rank,
                                              info.st_size, bytes));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw Error(ErrorCode::setup, fmt::format("inbox of rank {} is not sealed", rank));
  }
  inbox.data_ = map(fd, bytes);
  return inbox;
}

Inbox::~Inbox() {
  if (data_ != nullptr && pid_ == getpid()) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

Inbox::Inbox(Inbox&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      pid_(other.pid_) {}

Inbox& Inbox::operator=(Inbox&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(pid_, other.pid_);
  return *this;
}

}  // namespace ubep
