// This rank's way to ranks of other hosts: puts into their memory and gets out of it, by messages
// over UCX that the other side's progress() carries out.
//
// Not UCX's own puts: over networks without remote memory access, TCP above all, UCX (1.13) answers
// each of them by itself, and ends the process when one of a rank comes in that has died.
//
// What was put to a rank arrives in order, whole words at once. Bytes given to put() must stay as
// they are until the rank has answered to a word behind them, and memory that is fetched to until
// the transport is gone. Not thread-safe, and never waits but in finish().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ubep {

inline constexpr std::size_t kMostCopied = 64;

// Memory of this rank that others put into or get from.
struct Window {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

class UcxTransport {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Throws Error{setup}: this build or this machine has no UCX, or no network.
  UcxTransport(int rank, int size);
  ~UcxTransport();
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  // What others need to reach this rank, whose windows these are.
  std::string describe(std::span<const Window> windows);
  // From describe() of that rank. Throws Error{setup}.
  void connect(int rank, const std::string& description);

  void put(int rank, std::size_t window, std::uint64_t offset, std::span<const std::byte> from);
  // Up to kMostCopied bytes, which may change at once.
  void put_copy(int rank, std::size_t window, std::uint64_t offset,
                std::span<const std::byte> from);
  // Into `to`, which must stay until `*done` has become 1 (2: the rank cannot be reached any more).
  void get(int rank, std::size_t window, std::uint64_t offset, std::span<std::byte> to, int* done);

  // Moves transfers on; returns how many.
  int progress();
  // Whether everything put to this rank until now has arrived.
  bool flushed(int rank);
  // Until all has arrived everywhere, or the deadline.
  void finish(Deadline deadline);

  // Why a rank cannot be reached any more; null = it can.
  const char* failure(int rank) const;

  // Put and fetched so far; words count 8.
  std::uint64_t bytes() const;
  // Of the library: its version; empty = this build has none.
  static std::string version();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ubep
