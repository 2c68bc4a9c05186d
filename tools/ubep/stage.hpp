// The benchmark's stage: what its ranks (and the parent that forked them) have in common beside the
// library.
//
// Purpose: a barrier that also fails when a rank is gone, the first failure's text, and per-rank
// numbers. SharedStage is memory of one host; host_stage.hpp has one for several. Not for: moving
// tokens.
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
#include <functional>
#include <new>
#include <span>
#include <string>

#include "tools/ubep/exit_code.hpp"
#include "ubep/stats.hpp"
#include "ubep/status.hpp"

namespace ubep::tools {

inline constexpr int kMaxStageRanks = 64;

class Stage {
 public:
  // Moves on what this rank still has to send, without waiting: where nothing else would.
  using Meanwhile = std::function<void()>;

  Stage() = default;
  virtual ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Each rank writes its own. Those of others can be read once all have met, or after gather().
  virtual std::span<double> numbers(int rank) = 0;

  // The first failure wins; everyone's barriers fail from then on.
  virtual void fail(int exit_code, const std::string& text) = 0;
  // An operation's failure. Ranks that it waited for in vain are ended where they can be: they may
  // be stopped.
  void fail(const Status& status) {
    fail(exit_code_of(status.code), status.message());
    if (status.code != Code::timeout) return;
    for (int r = 0; r < kMaxStageRanks; ++r) {
      if ((status.missing >> r & 1) != 0) end(r);
    }
  }
  virtual bool failed() const = 0;
  // Of the first failure.
  virtual int exit_code() const = 0;
  virtual std::string text() const = 0;

  // Of every rank, by itself: so that others can tell whether it still runs.
  virtual void announce(int rank, int pid) = 0;

  // False when the run has failed. Bounded: ranks that do not come fail the run.
  virtual bool barrier(int rank, const Meanwhile& meanwhile) = 0;
  bool barrier(int rank) { return barrier(rank, {}); }

  // Collective: then rank 0 has all numbers, unless the run has failed (false). Also every rank's
  // last call, whether it failed or not: then all know why.
  virtual bool gather(int rank) = 0;

  // What the library says of the hosts; null where all ranks are on one.
  virtual const CommunicatorFacts* hosts() const { return nullptr; }

 protected:
  virtual void end(int rank) = 0;
};

struct StageHeader {
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> generation{0};
  std::atomic<std::uint32_t> failed{0};  // 0, or 1 + exit code of the first failure
  std::atomic<std::uint32_t> has_text{0};
  char text[512] = {};
  std::array<std::atomic<std::int32_t>, kMaxStageRanks> pids = {};         // 0 = not announced
  std::array<std::atomic<std::uint32_t>, kMaxStageRanks> arrived_at = {};  // generation + 1
};

// `doubles` numbers per rank follow the header.
class SharedStage final : public Stage {
 public:
  // Shared with the processes forked later.
  SharedStage(int ranks, std::size_t doubles) : SharedStage(ranks, doubles, -1) {
    header_ = new (header_) StageHeader;
  }
  // In a file of bytes_of(...) zeros, which is a valid stage; -1 = anonymous.
  SharedStage(int ranks, std::size_t doubles, int fd)
      : ranks_(ranks), doubles_(doubles), bytes_(bytes_of(ranks, doubles)) {
    const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
    void* area = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (area == MAP_FAILED) throw std::bad_alloc();
    header_ = static_cast<StageHeader*>(area);
  }
  static std::size_t bytes_of(int ranks, std::size_t doubles) {
    return sizeof(StageHeader) + static_cast<std::size_t>(ranks) * doubles * sizeof(double);
  }
  ~SharedStage() override { munmap(header_, bytes_); }

  std::span<double> numbers(int rank) override {
    auto* first = reinterpret_cast<double*>(header_ + 1);
    return {first + static_cast<std::size_t>(rank) * doubles_, doubles_};
  }

  using Stage::fail;
  void fail(int exit_code, const std::string& text) override {
    if (header_->has_text.exchange(1) == 0) {
      std::strncpy(header_->text, text.c_str(), sizeof(header_->text) - 1);
      header_->failed.store(1 + static_cast<std::uint32_t>(exit_code));
    }
  }
  bool failed() const override { return header_->failed.load() != 0; }
  // Another rank may be writing it down just now.
  int exit_code() const override {
    for (int tries = 0; tries < 1000 && header_->has_text.load() != 0 && !failed(); ++tries) {
      sched_yield();
    }
    return failed() ? static_cast<int>(header_->failed.load()) - 1 : kOk;
  }
  std::string text() const override { return header_->text; }

  void announce(int rank, int pid) override {
    header_->pids[static_cast<std::size_t>(rank)].store(pid);
  }

  // Yields: the awaited rank may need this CPU. Ranks that do not come are ended, since nothing
  // else would end a stopped process.
  using Stage::barrier;
  bool barrier(int rank, const Meanwhile&) override {
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

  bool gather(int rank) override { return !failed() && barrier(rank); }

 private:
  // A little longer than the library's waits, which can say more.
  static std::chrono::milliseconds patience() {
    const char* text = std::getenv("UBEP_TIMEOUT_MS");  // checked by Communicator::create
    return std::chrono::milliseconds((text != nullptr ? std::atoll(text) : 30000) + 1000);
  }

  void end(int rank) override {
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
