// What one rank shares: its segment, which peers only read, its inbox, where they push, and a lock
// that tells them whether it lives.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "fabric/shm/shared_file.hpp"

namespace ubep {

// Who holds the life lock of a rank's segment. In its owner's own process it is never seen as held.
struct LifeLock {
  bool held = false;
  int pid = 0;  // 0 = nobody, or it cannot be seen from this PID namespace
};
LifeLock look_at_life_lock(int fd, int rank);
// Whether `file` is a segment whose life lock this process holds: it must not be opened again,
// since closing any descriptor of it drops the lock.
bool is_own_segment(const struct stat& file);

class Segment {
 public:
  // Takes the owner's life lock, too (see alive()).
  static Segment create(std::uint64_t bytes, int rank);
  Segment() = default;
  ~Segment();
  Segment(Segment&&) = default;
  Segment& operator=(Segment&&) = default;
  // Of a peer. Takes ownership of `fd`.
  static Segment attach(int fd, std::uint64_t bytes, int rank);

  // Of a rank that takes no part, or is on another host: all words are 0, and it never lives.
  static Segment absent(std::uint64_t bytes, int rank);

  std::byte* data() const { return file_.data(); }
  std::uint64_t bytes() const { return file_.bytes(); }
  int fd() const { return file_.fd(); }  // -1: absent

  // data() is null when peers push nothing.
  const SharedFile& inbox() const { return inbox_; }
  void set_inbox(SharedFile inbox) { inbox_ = std::move(inbox); }

  // Whether the owner still holds its life lock: a POSIX lock on byte `rank`, which the kernel
  // drops when the process ends, even with a forked child alive. Only for owners that are other
  // processes. The lock also goes when its process closes any descriptor of the file, so exactly
  // one exists and it is closed last.
  bool alive() const;
  // Kills the process that holds the life lock and waits for its end. Throws Error{setup}.
  void end_owner() const;

 private:
  Segment(SharedFile file, int rank) : file_(std::move(file)), rank_(rank) {}

  SharedFile file_;
  SharedFile inbox_;
  int rank_ = 0;
};

}  // namespace ubep
