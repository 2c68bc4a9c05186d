// A memory file that one rank creates and its peers map: of segments and of inboxes.
//
// Sealed against cutting and growing before a peer gets it, so that nobody can truncate it under a
// reader. Nothing appears in /dev/shm and nothing is left behind.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace ubep {

struct SharedFileKind {
  const char* name;
  int seals;
  int peer_protection;  // what peers map it with
};

// Nobody but its owner can ever write to a segment.
inline constexpr SharedFileKind kSegmentFile{
    "segment", F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, PROT_READ};
// Peers put rows into an inbox. A hostile one can write anything, so nothing but payload lies
// there: no word, no index, no size.
inline constexpr SharedFileKind kInboxFile{"inbox", F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
                                           PROT_READ | PROT_WRITE};

class SharedFile {
 public:
  // Creates, maps for writing, seals. Throws Error{setup}, as attach() does.
  static SharedFile create(const SharedFileKind& kind, std::uint64_t bytes);
  // Maps the one of peer `rank`. Takes ownership of `fd`; checks size, seals and kind.
  static SharedFile attach(const SharedFileKind& kind, int fd, std::uint64_t bytes, int rank);

  // Zeros that nobody shares, for a rank that takes no part or is on another host.
  static SharedFile absent(const SharedFileKind& kind, std::uint64_t bytes);

  SharedFile() = default;
  ~SharedFile();
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&& other) noexcept;

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  // -1 = none

 private:
  void map(const char* name, int protection);

  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int fd_ = -1;
  int pid_ = 0;  // a forked child has no mapping here and must not unmap what took its place
};

}  // namespace ubep
