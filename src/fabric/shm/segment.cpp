#include "fabric/shm/segment.hpp"

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

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

[[noreturn]] void fail(const char* what, std::uint64_t bytes) {
  throw Error(ErrorCode::setup,
              fmt::format("segment of {} bytes: {} failed: {}", bytes, what, std::strerror(errno)));
}

std::byte* map(int fd, std::uint64_t bytes, int protection) {
  void* data = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) fail("mmap", bytes);
  madvise(data, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

struct flock lock_of(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Segment Segment::create(std::uint64_t bytes, int rank) {
  Segment segment;
  segment.bytes_ = bytes;
  segment.rank_ = rank;
  segment.pid_ = getpid();
  check_file_size(bytes);
  segment.fd_ = memfd_create("ubep-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd_ < 0) fail("memfd_create", bytes);
  if (ftruncate(segment.fd_, static_cast<off_t>(bytes)) != 0) fail("ftruncate", bytes);
  segment.data_ = map(segment.fd_, bytes, PROT_READ | PROT_WRITE);
  if (fcntl(segment.fd_, F_ADD_SEALS, kSeals) != 0) fail("sealing", bytes);
  struct flock lock = lock_of(rank);
  if (fcntl(segment.fd_, F_SETLK, &lock) != 0) fail("taking the life lock", bytes);
  return segment;
}

Segment Segment::attach(int fd, std::uint64_t bytes, int rank) {
  Segment segment;
  segment.fd_ = fd;
  segment.bytes_ = bytes;
  segment.rank_ = rank;
  segment.pid_ = getpid();
  struct stat info = {};
  if (fstat(fd, &info) != 0 || static_cast<std::uint64_t>(info.st_size) != bytes) {
    throw Error(ErrorCode::setup, fmt::format("segment of rank {} has {} bytes, expected {}", rank,
                                              info.st_size, bytes));
  }
  if ((fcntl(fd, F_GET_SEALS) & kSeals) != kSeals) {
    throw Error(ErrorCode::setup, fmt::format("segment of rank {} is not sealed", rank));
  }
  segment.data_ = map(fd, bytes, PROT_READ);
  return segment;
}

Segment::~Segment() {
  if (data_ != nullptr && pid_ == getpid()) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      inbox_(std::move(other.inbox_)),
      rank_(other.rank_),
      pid_(other.pid_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(inbox_, other.inbox_);
  std::swap(rank_, other.rank_);
  std::swap(pid_, other.pid_);
  return *this;
}

bool Segment::alive() const {
  struct flock lock = lock_of(rank_);
  if (fcntl(fd_, F_GETLK, &lock) != 0) return true;  // cannot tell: never a false death
  return lock.l_type != F_UNLCK;
}

}  // namespace ubep
