// The stage of ranks on several hosts: a communicator of its own.
//
// Purpose: what SharedStage is on one host. A barrier is a dispatch of one short token from every
// rank to every rank; the numbers go to rank 0 as rows of bytes.
// Not for: ranks of one host, whose shared memory takes less time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/ubep/stage.hpp"
#include "ubep/ubep.hpp"

namespace ubep::tools {

class HostStage final : public Stage {
 public:
  // Collective. Throws Error.
  HostStage(const Bootstrap& bootstrap, std::size_t doubles);

  std::span<double> numbers(int rank) override;
  using Stage::fail;
  void fail(int exit_code, const std::string& text) override;
  bool failed() const override { return failure_.has_value(); }
  int exit_code() const override { return failure_ ? failure_->exit_code : kOk; }
  std::string text() const override { return failure_ ? failure_->text : ""; }
  void announce(int, int) override {}  // the library knows who runs
  using Stage::barrier;
  bool barrier(int rank, const Meanwhile& meanwhile) override;
  bool gather(int rank) override;
  const CommunicatorFacts* hosts() const override { return &facts_; }

 private:
  struct Failure {
    std::int32_t exit_code = kOk;
    std::string text;
  };
  void end(int rank) override;
  bool exchange(std::span<const std::byte> mine, bool to_all, const Meanwhile& meanwhile);
  Status start(const ConstRows& x, const Routing& routing, const Meanwhile& meanwhile);
  Status finish(const Meanwhile& meanwhile);
  void exchange_failures();

  Communicator comm_;
  Handle handle_;
  CommunicatorFacts facts_;
  int rank_;
  int size_;
  std::chrono::milliseconds patience_;
  std::size_t doubles_;
  std::vector<double> numbers_;  // [1, or at rank 0 ranks][doubles]
  std::vector<std::int32_t> everyone_;
  std::vector<std::int32_t> rank_0_;  // and nobody else
  std::vector<float> weights_;
  std::vector<std::vector<std::byte>>
      rows_;  // [ranks] of the latest exchange; empty = it sent none
  std::optional<Failure> failure_;
  bool settled_ = false;  // all know of the failure, or cannot be told
};

}  // namespace ubep::tools
