// A segment: the memfd that one rank owns and its peers map for reading only.
//
// Sealed SHRINK | GROW | FUTURE_WRITE | SEAL: nobody can truncate it under a reader, and nobody but
// the owner can ever write to it. Nothing appears in /dev/shm and nothing is left behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "fabric/shm/inbox.hpp"

namespace ubep {

class Segment {
 public:
  // Creates, maps for writing, seals, and takes the owner's life lock (see alive()).
  static Segment create(std::uint64_t bytes, int rank);
  // Maps a peer's segment for reading. Takes ownership of `fd`; checks size and seals.
  static Segment attach(int fd, std::uint64_t bytes, int rank);

  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

  // The same rank's inbox; data() is null when peers push nothing.
  const Inbox& inbox() const { return inbox_; }
  void set_inbox(Inbox inbox) { inbox_ = std::move(inbox); }

  // Whether the owner still holds its life lock: a POSIX lock on byte `rank`, which the kernel
  // drops when the process ends, even with a forked child alive. Only for owners that are other
  // processes. The lock also goes when its process closes any descriptor of the file, so exactly
  // one exists and it is closed last.
  bool alive() const;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int fd_ = -1;
  Inbox inbox_;
  int rank_ = 0;
  int pid_ = 0;  // a forked child has no mapping here and must not unmap what took its place
};

}  // namespace ubep
