// An inbox: the memfd of one rank that its peers may write rows into, for pushed rows.
//
// Sealed SHRINK | GROW | SEAL: nobody can truncate it under a reader. A hostile peer can write
// anything into it, so nothing but payload lies here: no word, no index, no size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ubep {

class Inbox {
 public:
  static Inbox create(std::uint64_t bytes);  // bytes > 0
  // Maps a peer's inbox for writing. Takes ownership of `fd`; checks size and seals.
  static Inbox attach(int fd, std::uint64_t bytes, int rank);

  Inbox() = default;
  ~Inbox();
  Inbox(Inbox&& other) noexcept;
  Inbox& operator=(Inbox&& other) noexcept;

  std::byte* data() const { return data_; }
  int fd() const { return fd_; }  // -1 = none

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int fd_ = -1;
  int pid_ = 0;  // a forked child has no mapping here and must not unmap what took its place
};

}  // namespace ubep
