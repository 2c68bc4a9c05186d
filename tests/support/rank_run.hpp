// One rank's part in a random case: starts what the case says, in its own way, and compares.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/cases.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {

class RankRun {
 public:
  // `delay_seed` 0: no random sleeps.
  RankRun(const Case& c, int rank, std::uint64_t delay_seed);

  // Of calls that are repeated until they have an answer; else 40 s.
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  // Throws std::runtime_error at the first difference or failed call.
  void run(const Bootstrap& bootstrap);
  // Of all combined rows, in the order of the operations.
  std::uint64_t hash() const;

 private:
  enum class Stage : std::uint8_t { idle, dispatching, received, combining };

  // Caller's memory of one operation; it must live until the operation's lease has ended.
  struct Buffers {
    std::vector<std::byte> x;
    std::vector<Payload> payloads;
    std::vector<std::byte> rows;
    Rows received;  // of the caller's, or null
    std::vector<std::byte> y;
    std::vector<std::byte> out;
    Rows out_rows;
  };

  void start_dispatch(int number);
  void finish_dispatch(int number);
  void end(int number);
  void finish_combine(int number);
  void finish_handle(int handle);
  void finish(int number);

  ConstRows place_x(int number);
  Input place_input(int number);
  void publish_outputs(int number, const Received* received, const Rows& y);
  Rows place_out(int number);
  Rows place_y(int number);
  void check_gaps(int number);

  void retry(int number, const char* what, const std::function<Status()>& call);
  void require(int number, const char* what, const Status& status) const;
  [[noreturn]] void fail(int number, const std::string& what) const;
  Status step_lanes(const Handle& handle, int lanes);
  void maybe_sleep();

  const Operation& operation(int number) const;
  const LocalChoice& local(int number) const;
  const RankInput& input(int number) const;
  Handle& handle_of(int number);

  const Case& case_;
  int rank_;
  bool delays_;
  std::chrono::milliseconds patience_ = std::chrono::seconds(40);
  Random random_;
  std::vector<Stage> stages_;     // [operations]
  std::vector<Buffers> buffers_;  // [operations]
  std::vector<Hash> hashes_;      // [operations]
  std::vector<int> latest_;       // [handles] operation that used it last, -1 = none
  std::vector<Handle> handles_;   // outlive the communicator or not, as delays_ has it
  std::optional<Communicator> comm_;
};

}  // namespace ubep::test
