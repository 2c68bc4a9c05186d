#include "fabric/shm/shared_file.hpp"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/system_limits.hpp"
#include "fabric/shm/memory_limit.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

[[noreturn]] void fail(const char* name, std::uint64_t bytes, const char* what) {
  throw Error(ErrorCode::setup,
              fmt::format("{} of {} bytes: {} failed: {}", name, bytes, what, explain(errno)));
}

}  // namespace

void SharedFile::map(const char* name, int protection) {
  const int sharing = fd_ < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* data = mmap(nullptr, bytes_, protection, sharing | MAP_NORESERVE, fd_, 0);
  if (data == MAP_FAILED) fail(name, bytes_, "mmap");
  madvise(data, bytes_, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(data);
  pid_ = getpid();
}

SharedFile SharedFile::create(const SharedFileKind& kind, std::uint64_t bytes) {
  check_file_size(bytes);
  SharedFile file;
  file.bytes_ = bytes;
  file.fd_ =
      memfd_create(fmt::format("ubep-{}", kind.name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file.fd_ < 0) fail(kind.name, bytes, "memfd_create");
  if (ftruncate(file.fd_, static_cast<off_t>(bytes)) != 0) fail(kind.name, bytes, "ftruncate");
  file.map(kind.name, PROT_READ | PROT_WRITE);
  if (fcntl(file.fd_, F_ADD_SEALS, kind.seals) != 0) fail(kind.name, bytes, "sealing");
  return file;
}

SharedFile SharedFile::attach(const SharedFileKind& kind, int fd, std::uint64_t bytes, int rank) {
  SharedFile file;
  file.fd_ = fd;
  file.bytes_ = bytes;
  struct stat info = {};
  if (fstat(fd, &info) != 0 || static_cast<std::uint64_t>(info.st_size) != bytes) {
    throw Error(ErrorCode::setup, fmt::format("{} of rank {} has {} bytes, expected {}", kind.name,
                                              rank, info.st_size, bytes));
  }
  const int seals = fcntl(fd, F_GET_SEALS);  // -1: a file that cannot be sealed
  if (seals < 0 || (seals & kind.seals) != kind.seals) {
    throw Error(ErrorCode::setup, fmt::format("{} of rank {} is not sealed", kind.name, rank));
  }
  // A file of huge pages can be sealed, too, but touching it where none is free ends the process.
  struct statfs system = {};
  if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
    throw Error(ErrorCode::setup,
                fmt::format("{} of rank {} is not of ordinary memory", kind.name, rank));
  }
  file.map(kind.name, kind.peer_protection);
  return file;
}

SharedFile SharedFile::absent(const SharedFileKind& kind, std::uint64_t bytes) {
  SharedFile file;
  file.bytes_ = bytes;
  file.map(kind.name, PROT_READ | PROT_WRITE);
  return file;
}

SharedFile::~SharedFile() {
  if (data_ != nullptr && pid_ == getpid()) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      pid_(other.pid_) {}

SharedFile& SharedFile::operator=(SharedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(pid_, other.pid_);
  return *this;
}

}  // namespace ubep
