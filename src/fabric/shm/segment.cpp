#include "fabric/shm/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "ubep/status.hpp"

namespace ubep {
namespace {

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
  Segment segment(SharedFile::create(kSegmentFile, bytes), rank);
  struct flock lock = lock_of(rank);
  if (fcntl(segment.fd(), F_SETLK, &lock) != 0) {
    throw Error(ErrorCode::setup,
                fmt::format("segment of {} bytes: taking the life lock failed: {}", bytes,
                            std::strerror(errno)));
  }
  return segment;
}

Segment Segment::attach(int fd, std::uint64_t bytes, int rank) {
  return {SharedFile::attach(kSegmentFile, fd, bytes, rank), rank};
}

bool Segment::alive() const {
  struct flock lock = lock_of(rank_);
  if (fcntl(fd(), F_GETLK, &lock) != 0) return true;  // cannot tell: never a false death
  return lock.l_type != F_UNLCK;
}

}  // namespace ubep
