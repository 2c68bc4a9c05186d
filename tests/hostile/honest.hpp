// A rank that does everything right beside one that does not: what it was told, and whether what it
// got from the other honest ranks is what they sent.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "support/cases.hpp"
#include "support/reference.hpp"
#include "support/worker.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {

inline constexpr std::size_t kCodes = 8;  // of Code

// What a rank tells the parent.
struct Report {
  std::array<std::atomic<std::int64_t>, kCodes> calls;  // by their Status
  std::atomic<std::int64_t> rows, tokens;               // compared, and right
  std::atomic<std::int64_t> refused;                    // set-ups that failed
};

// What a rank's process ends with.
enum Ending { kGood, kWrongBytes = 3, kUnexpected = 4, kOverdue = 5 };

// A group, and which of its ranks is hostile.
struct Scene {
  Problem problem;
  CommunicatorOptions options;
  DispatchOptions dispatch;
  bool by_expert = false;  // combine: outputs are published one expert after the other
  int hostile = 0;
  int rounds = 1;
  std::string job;
};

class Honest {
 public:
  Honest(const Scene& scene, int rank, Report& report)
      : scene_(scene), rank_(rank), report_(report) {}

  // An Ending. `between` is called between calls.
  int run(Communicator& comm, const std::function<void()>& between);

 private:
  Status timed(const std::function<Status()>& call);
  int after(const Status& status) const;
  Status combine(Communicator& comm);
  bool is_right(const Received& received, std::string& difference);
  bool is_right_by_rank(const Received& received, std::string& difference);
  bool is_right_by_expert(const Received& received, std::string& difference);
  bool same_row(const Received& received, std::int64_t row, const ExpectedReceived& want,
                std::int64_t i) const;
  const ExpectedReceived& from(int source);
  int complain(const std::string& what) const;

  const Scene& scene_;
  int rank_;
  Report& report_;
  Worker* worker_ = nullptr;
  std::uint64_t lost_ = 0;  // told by a Status
  bool overdue_ = false;
  std::vector<ExpectedReceived> expected_;
};

}  // namespace ubep::test
