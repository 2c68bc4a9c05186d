// This rank's way to ranks of other hosts, over UCX: bytes and words into their windows, and bytes
// out of them.
//
// By messages that the other side's progress() carries out, and checks where each piece goes. Not
// by UCX's own puts: over networks without remote memory access, TCP above all, UCX (1.13) answers
// each of them by itself, and ends the process when one of a rank comes in that has died.
//
// Everything that is sent to a rank arrives in order. Small pieces wait for one another until
// post(). Memory that is fetched to must stay until the transport is gone. Not thread-safe, and
// never waits but in finish().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ubep {

// Memory of this rank that one other may write to, or read from. The same index on both sides.
struct Window {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  bool writable = false;
};

class UcxTransport {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Throws Error{setup}: this build or this machine has no UCX, or no network.
  UcxTransport(int rank, int size);
  ~UcxTransport();
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  // What others need to reach this rank.
  std::string describe() const;
  // With describe() of that rank, and its windows here. Throws Error{setup}.
  void connect(int rank, const std::string& description, std::vector<Window> windows);

  struct Place {
    int rank;
    std::size_t window;
    std::uint64_t offset;
  };
  // `from` is copied where it is short; else it must stay until the rank has answered to a word
  // behind it.
  void put(const Place& to, std::span<const std::byte> from);
  void put_word(const Place& to, std::uint64_t value);  // 8 bytes, at a multiple of 8
  // Into `into`, which must stay until `*done` has become 1 (2: it will not come).
  void get(const Place& from, std::span<std::byte> into, int* done);

  // Sends what was put until now.
  void post();
  // Moves transfers on; returns how many.
  int progress();
  // Whether a rank has taken in all that was put to it until now.
  bool flushed(int rank);
  // Until all has arrived everywhere, or the deadline.
  void finish(Deadline deadline);

  // Why a rank cannot be reached any more; null = it can.
  const char* failure(int rank) const;

  // Sent so far, without UCX's own part.
  std::uint64_t bytes() const;
  // Of the library; empty = this build has none.
  static std::string version();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ubep
