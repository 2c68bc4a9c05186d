#include "fabric/shm/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

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

using FileKey = std::pair<dev_t, ino_t>;

std::mutex& own_files_mutex() {
  static std::mutex instance;
  return instance;
}
std::set<FileKey>& own_files() {
  static std::set<FileKey> instance;
  return instance;
}

FileKey key_of(int fd) {
  struct stat file = {};
  (void)fstat(fd, &file);
  return {file.st_dev, file.st_ino};
}

}  // namespace

bool is_own_segment(const struct stat& file) {
  const std::lock_guard lock(own_files_mutex());
  return own_files().contains({file.st_dev, file.st_ino});
}

Segment::~Segment() {
  if (fd() < 0) return;
  const std::lock_guard lock(own_files_mutex());
  own_files().erase(key_of(fd()));  // of a peer's there is none
}

Segment Segment::create(std::uint64_t bytes, int rank) {
  Segment segment(SharedFile::create(kSegmentFile, bytes), rank);
  {
    const std::lock_guard lock(own_files_mutex());
    own_files().insert(key_of(segment.fd()));
  }
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

Segment Segment::absent(std::uint64_t bytes, int rank) {
  return {SharedFile::absent(kSegmentFile, bytes), rank};
}

LifeLock look_at_life_lock(int fd, int rank) {
  struct flock lock = lock_of(rank);
  if (fcntl(fd, F_GETLK, &lock) != 0) return {.held = true};  // cannot tell: never a false death
  if (lock.l_type == F_UNLCK) return {};
  return {.held = true, .pid = std::max(0, static_cast<int>(lock.l_pid))};
}

bool Segment::alive() const { return fd() >= 0 && look_at_life_lock(fd(), rank_).held; }

void Segment::end_owner() const {
  constexpr int kPatienceMs = 2000;
  const auto fail = [this](const char* what) {
    throw Error(ErrorCode::setup, fmt::format("rank {} cannot be ended: {}", rank_, what));
  };
  if (!alive()) return;
  const int pid = look_at_life_lock(fd(), rank_).pid;
  if (pid == 0) fail("its process cannot be seen from here (another PID namespace)");
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) fail(std::strerror(errno));
  // The descriptor is of the process that had the number when it was opened. It still holds the
  // lock: so it is the one.
  const bool same = look_at_life_lock(fd(), rank_).pid == pid;
  const bool sent = same && syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0) == 0;
  const int error = errno;
  pollfd ended{process, POLLIN, 0};
  const bool gone = sent && poll(&ended, 1, kPatienceMs) == 1;
  close(process);
  if (!same) return end_owner();
  if (!sent) fail(std::strerror(error));
  if (!gone) fail("its process does not end");
}

}  // namespace ubep
