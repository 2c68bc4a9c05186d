#include "tools/ubep/host_stage.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>

namespace ubep::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kTextBytes = 512;
constexpr std::size_t kPieceBytes = 64 << 10;  // of the numbers, in one row
constexpr int kLooks = 1024;                   // between looks for ranks that have ended

CommunicatorOptions options_of(const Bootstrap& bootstrap) {
  CommunicatorOptions options;
  options.num_experts = options.max_topk = bootstrap.size;
  options.max_tokens = 1;
  options.max_hidden = static_cast<int>(kPieceBytes);
  options.max_dtype = DType::u8;
  return options;
}

// What tells most of several failures: those who waited for a rank that failed say less.
int rank_of(int exit_code) { return exit_code == kTimeout ? 2 : exit_code == kPeerLost ? 1 : 0; }

}  // namespace

HostStage::HostStage(const Bootstrap& bootstrap, std::size_t doubles)
    : comm_(Communicator::create(bootstrap, options_of(bootstrap))),
      facts_(comm_.facts()),
      rank_(bootstrap.rank),
      size_(bootstrap.size),
      patience_(bootstrap.timeout),
      doubles_(doubles),
      numbers_(doubles * static_cast<std::size_t>(rank_ == 0 ? size_ : 1)),
      everyone_(static_cast<std::size_t>(size_)),
      rank_0_(everyone_.size(), -1),
      weights_(everyone_.size()),
      rows_(everyone_.size()) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
  rank_0_[0] = 0;
}

std::span<double> HostStage::numbers(int rank) {
  const auto row = static_cast<std::size_t>(rank == rank_ ? 0 : rank);
  return std::span(numbers_).subspan(row * doubles_, doubles_);
}

void HostStage::fail(int exit_code, const std::string& text) {
  if (!failure_) failure_ = Failure{exit_code, text};
}

void HostStage::end(int rank) {
  try {
    comm_.mask(rank);
  } catch (const Error&) {  // it is on another host: the ranks there end it, if there are any
  }
}

Status HostStage::start(const ConstRows& x, const Routing& routing, const Meanwhile& meanwhile) {
  const auto deadline = Clock::now() + patience_;
  for (;;) {
    Status status = comm_.start_dispatch(
        x, routing, {.layout = Layout::rank_major, .path = Path::push}, handle_);
    if (status.code != Code::not_ready && status.code != Code::slot_busy) return status;
    if (Clock::now() >= deadline) {
      status.code = Code::timeout;
      return status;
    }
    if (meanwhile) meanwhile();
    if (comm_.step() == 0) sched_yield();
  }
}

Status HostStage::finish(const Meanwhile& meanwhile) {
  const auto deadline = Clock::now() + patience_;
  for (int look = 1;; ++look) {
    Status status = comm_.poll(handle_);
    if (status.code != Code::not_ready) return status;
    if (look % kLooks == 0) {
      status = comm_.wait(handle_, Clock::now());
      if (status.code != Code::timeout || Clock::now() >= deadline) return status;
    }
    if (meanwhile) meanwhile();
    if (comm_.step() == 0) sched_yield();
  }
}

// One row from each rank, as long as every other's, to all or to rank 0. False when it failed,
// which is then this rank's failure.
bool HostStage::exchange(std::span<const std::byte> mine, bool to_all, const Meanwhile& meanwhile) {
  const ConstRows x{mine.data(), 1, static_cast<std::int64_t>(mine.size()), DType::u8};
  const Routing routing{to_all ? everyone_ : rank_0_, weights_, size_};
  Status status = start(x, routing, meanwhile);
  if (status.ok()) status = finish(meanwhile);
  if (!status.ok()) {
    Stage::fail(status);
    settled_ = true;
    return false;
  }
  const Received& received = handle_.received();
  std::int64_t row = 0;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    rows_[r].clear();
    for (std::int32_t i = 0; i < received.src_counts[r]; ++i) {
      const std::byte* from = received.row(row++);
      rows_[r].assign(from, from + mine.size());
    }
  }
  comm_.release(handle_);
  return true;
}

bool HostStage::barrier(int /*rank*/, const Meanwhile& meanwhile) {
  if (settled_) return false;
  const std::array<std::byte, 8> mine = {failure_ ? std::byte{1} : std::byte{0}};
  if (!exchange(mine, true, meanwhile)) return false;
  const bool bad = std::any_of(rows_.begin(), rows_.end(), [](const std::vector<std::byte>& row) {
    return row.empty() || row[0] != std::byte{0};
  });
  // Its loss may have been told to an operation of the measured communicator before.
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].empty()) fail(kPeerLost, "rank " + std::to_string(r) + " ended");
  }
  if (bad) exchange_failures();
  return !bad;
}

// All have seen that there is one.
void HostStage::exchange_failures() {
  settled_ = true;
  std::array<std::byte, kTextBytes> mine = {};
  const std::int32_t exit_code = this->exit_code();
  std::memcpy(mine.data(), &exit_code, sizeof(exit_code));
  const std::string own = text();
  own.copy(reinterpret_cast<char*>(mine.data()) + sizeof(exit_code),
           kTextBytes - sizeof(exit_code) - 1);
  if (!exchange(mine, true, {})) return;
  std::optional<Failure> most;
  for (const std::vector<std::byte>& row : rows_) {
    Failure failure;
    if (row.size() != kTextBytes) continue;
    std::memcpy(&failure.exit_code, row.data(), sizeof(failure.exit_code));
    failure.text = reinterpret_cast<const char*>(row.data()) + sizeof(failure.exit_code);
    if (failure.exit_code == kOk) continue;
    if (!most || rank_of(failure.exit_code) < rank_of(most->exit_code)) most = failure;
  }
  if (most) failure_ = most;
}

bool HostStage::gather(int rank) {
  if (!barrier(rank, {})) return false;
  std::vector<std::byte> piece(kPieceBytes);
  const std::size_t bytes = doubles_ * sizeof(double);
  const auto* from = reinterpret_cast<const std::byte*>(numbers_.data());
  for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
    const std::size_t count = std::min(kPieceBytes, bytes - at);
    std::memcpy(piece.data(), from + at, count);
    if (!exchange(std::span(piece).first(count), false, {})) return false;
    for (int r = 1; r < size_ && rank_ == 0; ++r) {
      const std::vector<std::byte>& row = rows_[static_cast<std::size_t>(r)];
      if (row.size() == count)
        std::memcpy(reinterpret_cast<std::byte*>(numbers(r).data()) + at, row.data(), count);
    }
  }
  return true;
}

}  // namespace ubep::tools
