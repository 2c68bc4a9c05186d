// The benchmark's stage: memory that the ranks (and the parent that forked them) share, beside the
// library.
//
// Purpose: a barrier that also fails when a rank is gone, the first failure's text, and per-rank
// numbers. Not for: moving tokens.
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <string>

#include "tools/ubep/exit_code.hpp"
#include "ubep/status.hpp"

namespace ubep::tools {

inline constexpr int kMaxStageRanks = 64;

struct StageHeader {
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> generation{0};
  std::atomic<std::uint32_t> failed{0};  // 0, or 1 + exit code of the first failure
  std::atomic<std::uint32_t> has_text{0};
  char text[512] = {};
  std::array<std::atomic<std::int32_t>, kMaxStageRanks> pids = {};         // 0 = not announced
  std::array<std::atomic<std::uint32_t>, kMaxStageRanks> arrived_at = {};  // generation + 1
};

// `doubles` numbers per rank follow the header; each rank writes its own.
class Stage {
 public:
  // Shared with the processes forked later.
  Stage(int ranks, std::size_t doubles) : Stage(ranks, doubles, -1) {
    header_ = new (header_) StageHeader;
  }
  // In a file of bytes_of(...) zeros, which is a valid stage; -1 = anonymous.
  Stage(int ranks, std::size_t doubles, int fd)
      : ranks_(ranks), doubles_(doubles), bytes_(bytes_of(ranks, doubles)) {
    const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
    void* area = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (area == MAP_FAILED) throw std::bad_alloc();
    header_ = static_cast<StageHeader*>(area);
  }
  static std::size_t bytes_of(int ranks, std::size_t doubles) {
    return sizeof(StageHeader) + static_cast<std::size_t>(ranks) * doubles * sizeof(double);
  }
  ~Stage() { munmap(header_, bytes_); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  std::span<double> numbers(int rank) {
    auto* first = reinterpret_cast<double*>(header_ + 1);
    return {first + static_cast<std::size_t>(rank) * doubles_, doubles_};
  }

  // The first failure wins; everyone's barriers fail from then on.
  void fail(int exit_code, const std::string& text) {
    if (header_->has_text.exchange(1) == 0) {
      std::strncpy(header_->text, text.c_str(), sizeof(header_->text) - 1);
      header_->failed.store(1 + static_cast<std::uint32_t>(exit_code));
    }
  }
  // An operation's failure. Ranks that it waited for in vain are ended: they may be stopped.
  void fail(const Status& status) {
    fail(exit_code_of(status.code), status.message());
    if (status.code != Code::timeout) return;
    for (int r = 0; r < kMaxStageRanks; ++r) {
      if ((status.missing >> r & 1) != 0) end(r);
    }
  }
  bool failed() const { return header_->failed.load() != 0; }
  // Of the first failure, which another rank may be writing down just now.
  int exit_code() const {
    for (int tries = 0; tries < 1000 && header_->has_text.load() != 0 && !failed(); ++tries) {
      sched_yield();
    }
    return failed() ? static_cast<int>(header_->failed.load()) - 1 : kOk;
  }
  std::string text() const { return header_->text; }

  // Of every rank, by itself: so that others can tell whether it still runs.
  void announce(int rank, int pid) { header_->pids[static_cast<std::size_t>(rank)].store(pid); }

  // False when the run has failed. Yields: the awaited rank may need this CPU. Bounded: ranks that
  // do not come fail the run, and are ended, since nothing else would end a stopped process.
  bool barrier(int rank) {
    const std::uint32_t generation = header_->generation.load();
    header_->arrived_at[static_cast<std::size_t>(rank)].store(generation + 1);
    if (header_->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
      header_->arrived.store(0);
      header_->generation.store(generation + 1);
      return !failed();
    }
    const auto deadline = std::chrono::steady_clock::now() + patience();
    for (int spin = 0; header_->generation.load() == generation; ++spin) {
      if (failed()) return false;
      if (spin >= 64) sched_yield();
      if (spin % 4096 != 4095) continue;
      look_for_ended_ranks();
      if (std::chrono::steady_clock::now() < deadline) continue;
      for (int r = 0; r < ranks_; ++r) {
        if (header_->arrived_at[static_cast<std::size_t>(r)].load() == generation + 1) continue;
        fail(kTimeout, "timeout: rank " + std::to_string(r) + " does not come to the barrier");
        end(r);
      }
    }
    return !failed();
  }

 private:
  // A little longer than the library's waits, which can say more.
  static std::chrono::milliseconds patience() {
    const char* text = std::getenv("UBEP_TIMEOUT_MS");  // checked by Communicator::create
    return std::chrono::milliseconds((text != nullptr ? std::atoll(text) : 30000) + 1000);
  }

  void end(int rank) {
    const int pid = header_->pids[static_cast<std::size_t>(rank)].load();
    if (pid != 0) kill(pid, SIGKILL);
  }

  void look_for_ended_ranks() {
    for (int r = 0; r < ranks_; ++r) {
      const int pid = header_->pids[static_cast<std::size_t>(r)].load();
      if (pid != 0 && kill(pid, 0) != 0 && errno == ESRCH) {
        fail(kPeerLost,
             "rank " + std::to_string(r) + " ended (process " + std::to_string(pid) + ")");
      }
    }
  }

  int ranks_;
  std::size_t doubles_;
  std::size_t bytes_ = 0;
  StageHeader* header_ = nullptr;
};

}  // namespace ubep::tools
