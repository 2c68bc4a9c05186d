// Random cases (support/cases.hpp) on the staged fabric: all ranks' engines on one thread, moved on
// in an order drawn from the seed.
//
//   Case c = make_staged_case(seed);
//   std::string error = run_staged(c, {});              // "" or the first difference
//   std::string error = run_staged(c, {.a_rank_dies = true});
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "engine/handle_state.hpp"
#include "support/cases.hpp"
#include "support/random.hpp"
#include "support/staged_fabric.hpp"

namespace ubep::test {

// What survivors of a death compare with each other.
struct Outcome {
  bool received = false;
  Ranks sources;
  std::vector<std::uint8_t> valid;  // empty: not combined
};

// One rank: its engine and its part in the case.
class StagedRank {
 public:
  StagedRank(const Case& c, StagedFabric& fabric);

  // Does one thing: a step, a look for losses, or the next start or end if its time has come.
  // Throws std::runtime_error at the first difference.
  void turn(Random& random);
  bool finished() const;
  void close() { engine_->close(); }
  // The lost rank that statuses may speak of.
  void expect_loss_of(int rank) { victim_ = rank; }
  const Outcome& outcome(int operation) const;
  // What it waits for, in words.
  std::string state() const;

 private:
  enum class Stage : std::uint8_t { idle, dispatching, received, combining, ended };
  struct Progress {
    Stage stage = Stage::idle;
    bool input_taken = false;
    Rows x;
    std::vector<std::byte> x_memory, y_memory, out_memory;
    Rows y, out;
    Outcome outcome;
  };

  void try_next(Random& random);
  bool start_dispatch(int number);
  bool end(int number, Random& random);
  bool start_combine(int number);
  bool place_x(int number);
  bool is_busy(const HandleState& handle) const;
  void collect();
  void check_received(int number);
  void check_combined(int number);
  void check_status(int number, const Status& status);
  bool accept(int number, const char* what, const Status& status) const;
  [[noreturn]] void fail(int number, const std::string& what) const;

  const Operation& operation(int number) const;
  const LocalChoice& local(int number) const;
  const RankInput& input(int number) const;
  Progress& progress(int number);
  HandleState& handle_of(int number);
  bool is_repeated(int number) const;

  const Case& case_;
  int rank_;
  std::shared_ptr<Engine> engine_;
  std::vector<std::unique_ptr<HandleState>> handles_;
  std::vector<Progress> progress_;  // [operations]
  std::size_t next_ = 0;            // event
  int victim_ = -1;
  bool loss_reported_ = false;
};

struct StagedRunOptions {
  bool a_rank_dies = false;
  int victim = -1;  // -1: drawn
};

// A small case; rows are pulled, as they must be where memory is not mapped.
Case make_staged_case(std::uint64_t seed);

std::string run_staged(const Case& c, const StagedRunOptions& options);

}  // namespace ubep::test
