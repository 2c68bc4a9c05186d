// One rank's part in a simulated run: starts what the calls say, in lanes of the world, and
// compares everything that it gets with the reference.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "engine/handle_state.hpp"
#include "sim/crew.hpp"
#include "simulation/setup.hpp"
#include "support/random.hpp"

namespace ubep::test {

// What survivors of a death compare with each other.
struct Outcome {
  bool received = false;
  Ranks sources;
  std::vector<std::uint8_t> valid;  // empty: not combined
};

// Ranks that have gone or failed, as all may know.
struct Losses {
  Ranks gone;    // died, failed
  Ranks failed;  // met a mismatch
};

class SimRank {
 public:
  SimRank(const Setup& setup, sim::World& world, int rank, Losses& losses);

  // Bodies of the rank's first lane, and of its others. The first throws std::runtime_error at the
  // first difference.
  void live();
  void help(int lane) { crew_->help(lane); }

  int rank() const { return rank_; }
  bool has_failed() const { return failed_; }
  const Outcome& outcome(int operation) const;
  // What it waits for, in words.
  std::string state() const;

 private:
  enum class Stage : std::uint8_t { idle, dispatching, received, combining, ended };
  struct Progress {
    Stage stage = Stage::idle;
    Rows x;
    std::vector<Payload> payloads;
    std::vector<std::byte> x_memory, rows_memory, y_memory, out_memory;
    Rows rows, y, out;
    std::vector<int> unpublished;  // local experts
    bool late = false;             // whose outputs are still to be computed,
    Problem shown;                 //   of what was received
    Outcome outcome;
  };

  bool turn();
  bool finished() const;
  bool try_next();
  bool start_dispatch(int number);
  void spoil_record(const HandleState& handle);
  DispatchOptions options_of(int number) const;
  Input input_of(int number);
  bool end(int number);
  bool start_combine(int number);
  bool publish_some();
  bool may_give_up(int number) const;
  bool relays(int number) const;
  bool same_host(int r) const;
  Ranks gateways_of(int r) const;
  void release(int number);
  bool place_x(int number);
  bool is_busy(const HandleState& handle) const;
  bool is_open(int handle) const;
  bool collect();
  void check_received(int number);
  void check_combined(int number);
  void check_status(int number, const Status& status);
  Ranks may_be_gone() const;
  void check_agreed(int number, const Ranks& others) const;
  bool accept(int number, const char* what, const Status& status);
  [[noreturn]] void fail(int number, const std::string& what) const;
  void note(int number, const std::string& text);

  bool is_culprit(int number) const;
  bool repeats_error(int number) const;
  const Operation& operation(int number) const;
  const LocalChoice& local(int number) const;
  const RankInput& input(int number) const;
  Progress& progress(int number);
  HandleState& handle_of(int number);
  bool is_repeated(int number) const;

  const Setup& setup_;
  const Case& case_;
  sim::World& world_;
  int rank_;
  Losses& losses_;
  Random random_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<sim::Crew> crew_;
  std::vector<std::unique_ptr<HandleState>> handles_;
  std::vector<Progress> progress_;  // [operations]
  std::size_t next_ = 0;            // event
  Ranks reported_;                  // losses
  bool failed_ = false;
  sim::Time progressed_ = 0;
};

}  // namespace ubep::test
