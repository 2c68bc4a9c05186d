// Runs a test body once per rank, ranks being threads or processes.
//
//   run_ranks(RankKind::processes, 3, [&](const Bootstrap& bootstrap) {
//     ... EXPECT_EQ(...) ...                              // counts in either kind
//   });
#pragma once

#include <sys/mman.h>

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <new>
#include <ostream>
#include <string>
#include <vector>

#include "ubep/bootstrap.hpp"

namespace ubep::test {

// hosts: processes on several hosts, as far as they know (host_of_rank); all on loopback.
enum class RankKind { threads, processes, hosts };

const char* name(RankKind kind);

inline void PrintTo(RankKind kind,
                    std::ostream* out) {  // NOLINT(readability-identifier-naming): gtest
  *out << name(kind);
}

// Names the instances of a test that is parameterised by RankKind.
struct KindName {
  template <class Info>
  std::string operator()(const Info& instance) const {
    return name(instance.param);
  }
};

using RankBody = std::function<void(const Bootstrap&)>;

// 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, ...: hosts of different numbers of ranks.
inline int host_of_rank(int rank) { return rank * 2 / 5; }

// A port of loopback that nobody listens on just now.
int free_port();

// Seconds after which a rank that hangs is ended by SIGALRM (processes), or the test (threads).
inline constexpr unsigned kRankSeconds = 60;

// What ended each rank: 0, 1 = an expectation failed, 70 = exception, 128 + n = signal n.
std::vector<int> rank_statuses(RankKind kind, int size, const RankBody& body);
// The same, and expects 0 of all.
void run_ranks(RankKind kind, int size, const RankBody& body);

// How children end: their exit status, 128 + n by signal n, -1 = still alive when `patience` was
// over (then it is killed). `unawaited` is killed once the others have ended; its status is -1,
// too.
std::vector<int> await_children(const std::vector<pid_t>& children, std::chrono::seconds patience,
                                int unawaited = -1);

// Memory that the test and all its ranks share, zero at first.
template <class T>
class SharedArray {
 public:
  explicit SharedArray(std::size_t size) : size_(size) {
    void* memory =
        mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
    for (std::size_t i = 0; i < size; ++i) new (data_ + i) T();
  }
  ~SharedArray() { munmap(data_, size_ * sizeof(T)); }
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;

  T& operator[](std::size_t i) const { return data_[i]; }
  T& operator[](int i) const { return data_[static_cast<std::size_t>(i)]; }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

// Opens once `size` ranks have arrived. Test scaffolding: the library has no barrier.
class Gate {
 public:
  explicit Gate(int size) : size_(size), count_(1) {}
  void arrive() const;
  void wait() const;
  void arrive_and_wait() const {
    arrive();
    wait();
  }

 private:
  int size_;
  SharedArray<int> count_;
};

}  // namespace ubep::test
