#include "simulation/sim_run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "api/checks.hpp"
#include "protocol/protocols.hpp"
#include "protocol/segment_layout.hpp"
#include "simulation/sim_rank.hpp"

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr std::uint64_t kMostEvents = 10'000'000;
constexpr sim::Time kSlice = 50 * sim::kMicrosecond;

// A crash says which seed it was, then goes its way.
class SeedOnCrash {
 public:
  explicit SeedOnCrash(std::uint64_t seed) {
    static const bool installed = install();
    length = installed ? std::snprintf(text, sizeof text, "crash: rerun with UBEP_SEED=%llu\n",
                                       static_cast<unsigned long long>(seed))
                       : 0;
  }
  ~SeedOnCrash() { length = 0; }
  SeedOnCrash(const SeedOnCrash&) = delete;
  SeedOnCrash& operator=(const SeedOnCrash&) = delete;

 private:
  static bool install() {
    struct sigaction action = {};
    action.sa_handler = tell;
    return sigaction(SIGSEGV, &action, &before[0]) == 0 &&
           sigaction(SIGABRT, &action, &before[1]) == 0;
  }
  // Returning repeats the fault, under whoever was in charge before.
  static void tell(int signal) {
    sigaction(signal, &before[signal == SIGSEGV ? 0 : 1], nullptr);
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, text, static_cast<std::size_t>(length));
  }

  static inline volatile std::sig_atomic_t length = 0;
  static inline char text[64];
  static inline struct sigaction before[2];
};

// "pub[1]" for the offset of that word.
std::string word_name(const SegmentLayout& layout, const GroupConfig& config,
                      std::uint64_t offset) {
  for (std::uint64_t i = 0; i < 4 * static_cast<std::uint64_t>(config.slots); ++i) {
    if (layout.op(i) == offset) return fmt::format("op[{}]", i);
  }
  for (int s = 0; s < config.slots; ++s) {
    if (layout.pub(s) == offset) return fmt::format("pub[{}]", s);
    if (layout.out(s) == offset) return fmt::format("out[{}]", s);
    if (layout.done(s) == offset) return fmt::format("done[{}]", s);
    if (!config.push) continue;
    if (layout.armed(s) == offset) return fmt::format("armed[{}]", s);
    if (layout.base(s) == offset) return fmt::format("base[{}]", s);
    for (int r = 0; r < config.size; ++r) {
      if (layout.sent(s, r) == offset) return fmt::format("sent[{}][{}]", s, r);
    }
  }
  return fmt::format("word at {}", offset);
}

class Run {
 public:
  explicit Run(const Setup& setup) : setup_(setup), world_(setup.world) {
    for (int r = 0; r < setup.calls.num_ranks; ++r) {
      if (r == setup.absent) world_.kill(r);
      const bool takes_part = r != setup.absent;
      ranks_.push_back(takes_part ? std::make_unique<SimRank>(setup, world_, r, losses_) : nullptr);
    }
    if (setup.absent >= 0) losses_.gone.set(index(setup.absent));
    for (const sim::Fate& fate : setup.world.fates) {
      if (fate.dies) losses_.gone.set(index(fate.rank));
    }
  }

  // Lanes that are still within an engine leave it first.
  ~Run() { world_.end(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void run() {
    for (const auto& rank : ranks_) {
      if (rank == nullptr) continue;
      const sim::Time start = setup_.starts[index(rank->rank())];
      world_.start(
          rank->rank(), [&rank] { rank->live(); }, start);
      for (int lane = 1; lane < setup_.world.lanes; ++lane) {
        world_.start(
            rank->rank(), [&rank, lane] { rank->help(lane); }, start);
      }
    }
    for (sim::Time limit = kSlice; !world_.run(limit); limit += kSlice) {
      if (world_.events() < kMostEvents && !world_.is_stuck()) continue;
      throw std::runtime_error((world_.is_stuck() ? "stuck: " : "no end in sight: ") + waits());
    }
    for (const auto& rank : ranks_) {
      if (rank == nullptr || is_gone(rank->rank())) continue;
      const std::string held = world_.fabric(rank->rank()).held();
      if (!held.empty()) throw std::runtime_error(held);
    }
    for (int r = 0; r < setup_.calls.num_ranks; ++r) {
      if (world_.is_dead(r)) check_agreement(r);
    }
  }

  void fill(Result& result) const {
    result.events = world_.events();
    result.torn_puts = world_.torn_puts();
    result.time = world_.now();
    result.transcript = world_.transcript();
  }

 private:
  bool is_gone(int rank) const { return world_.is_dead(rank) || ranks_[index(rank)]->has_failed(); }

  std::string waits() const {
    std::string text;
    for (const auto& rank : ranks_) {
      if (rank != nullptr && !is_gone(rank->rank())) text += "\n  " + rank->state();
    }
    return text;
  }

  // A rank took part in a stage or it did not, in the eyes of all survivors.
  void check_agreement(int victim) const {
    for (int i = 0; i < static_cast<int>(setup_.calls.operations.size()); ++i) {
      const Problem& problem = setup_.calls.operations[index(i)].problem;
      int dispatched = -1;  // -1 = nobody knows yet
      for (const auto& rank : ranks_) {
        if (rank == nullptr) continue;
        if (is_gone(rank->rank())) continue;
        const Outcome& outcome = rank->outcome(i);
        if (!outcome.received) continue;
        // A source without rows for a rank cannot be told from one that sent all of them.
        const int took_part = outcome.sources[index(victim)] ? 1 : 0;
        if (dispatched == -1) dispatched = took_part;
        if (dispatched != took_part) disagree(i, victim);
      }
      const Operation& operation = setup_.calls.operations[index(i)];
      // A gateway that dies takes along what it relays, whatever others have of its own.
      if (!is_relayed(setup_, operation.local[index(victim)]) &&
          !outputs_tell_themselves(operation)) {
        check_combines(i, victim, problem);
      }
    }
  }

  // Then a rank that has all of the victim's outputs has lost nothing, whatever others have.
  bool outputs_tell_themselves(const Operation& operation) const {
    return setup_.returns && find_protocol(setup_.calls.options.protocol).decodes() &&
           !operation.bsp && operation.problem.layout != Layout::expert_padded;
  }

  // All of the victim's outputs count for everybody or none do; of a victim that published them one
  // by one those of some experts.
  void check_combines(int i, int victim, const Problem& problem) const {
    const bool by_expert = setup_.calls.operations[index(i)].local[index(victim)].by_expert;
    std::set<std::int32_t> counted;
    int combined = -1;
    for (const bool valid : {true, false}) {
      each_token_of(victim, problem, i, [&](const std::set<std::int32_t>& experts, bool is_valid) {
        if (is_valid != valid) return;
        if (valid) counted.insert(experts.begin(), experts.end());
        if (combined == -1) combined = valid ? 1 : 0;
        const bool all_counted =
            std::includes(counted.begin(), counted.end(), experts.begin(), experts.end());
        if (by_expert ? !valid && all_counted : combined != (valid ? 1 : 0)) disagree(i, victim);
      });
    }
  }

  // Calls with the victim's experts of a survivor's token that needs nobody else who is gone, and
  // whether the token is valid.
  template <class F>
  void each_token_of(int victim, const Problem& problem, int i, F&& call) const {
    const std::vector<std::int32_t> owners = owners_of(problem);
    for (const auto& rank : ranks_) {
      if (rank == nullptr || is_gone(rank->rank())) continue;
      const Outcome& outcome = rank->outcome(i);
      for (std::int64_t t = 0; t < std::ssize(outcome.valid); ++t) {
        std::set<std::int32_t> experts;
        bool needs_others = false;
        for (int k = 0; k < problem.topk; ++k) {
          const std::int32_t id =
              problem.ranks[index(rank->rank())].topk_idx[index(t * problem.topk + k)];
          if (id < 0) continue;
          const int owner = owners[index(id)];
          if (owner == victim) experts.insert(id);
          needs_others |= owner != victim && losses_.gone[index(owner)];
        }
        if (!experts.empty() && !needs_others) call(experts, outcome.valid[index(t)] != 0);
      }
    }
  }

  [[noreturn]] static void disagree(int operation, int victim) {
    throw std::runtime_error(
        fmt::format("operation {}: survivors disagree about the part of rank {}, which died",
                    operation, victim));
  }

  const Setup& setup_;
  sim::World world_;
  Losses losses_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
};

bool fails(std::uint64_t seed, const Cuts& cuts, bool planted) {
  return !run(make_setup(seed, cuts, planted)).error.empty();
}

// Tries a further reduction under some schedules; keeps the first that fails.
bool keep(std::uint64_t seed, bool planted, Cuts candidate, Cuts& best) {
  constexpr std::uint64_t kSchedules = 12;
  for (std::uint64_t i = 0; i <= kSchedules; ++i) {
    if (i > 0) candidate.schedule = seed + i * 7919;
    if (!fails(seed, candidate, planted)) continue;
    best = candidate;
    return true;
  }
  return false;
}

}  // namespace

Result run(Setup setup, bool transcript) {
  const SeedOnCrash seed_on_crash(setup.calls.seed);
  const GroupConfig config = group_of(setup);
  const std::vector<SegmentLayout> layouts = [&] {
    std::vector<SegmentLayout> all;
    for (int r = 0; r < config.size; ++r) all.emplace_back(config, r);
    return all;
  }();
  if (transcript) {
    setup.world.name_word = [&](int rank, std::uint64_t offset) {
      return word_name(layouts[index(rank)], config, offset);
    };
  }
  expect(setup.calls);
  Result result;
  Run run(setup);
  try {
    run.run();
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  run.fill(result);
  return result;
}

std::string transcript_of(std::uint64_t seed, const Cuts& cuts, bool loses_release) {
  const Setup setup = make_setup(seed, cuts, loses_release);
  const Result result = run(setup, true);
  std::string text = fmt::format("seed {}{}{}: {}\n", seed, cuts.arguments(),
                                 loses_release ? " --loses-release" : "", describe(setup));
  for (const std::string& line : result.transcript) text += line + "\n";
  text += fmt::format("{} events, {} ns: {}\n", result.events, result.time / sim::kNanosecond,
                      result.error.empty() ? "all well" : result.error);
  return text;
}

Cuts shrink(std::uint64_t seed, bool planted, Cuts best) {
  bool Cuts::*const flags[] = {&Cuts::no_fates, &Cuts::one_lane, &Cuts::strong, &Cuts::prompt};
  for (const auto flag : flags) {
    Cuts candidate = best;
    candidate.*flag = true;
    (void)keep(seed, planted, candidate, best);
  }
  const auto operations = static_cast<int>(make_setup(seed, best).calls.operations.size());
  for (int i = operations - 1; i >= 0; --i) {
    Cuts candidate = best;
    candidate.dropped.push_back(i);
    (void)keep(seed, planted, candidate, best);
  }
  for (Cuts candidate = best; ++candidate.halvings <= 6;) {
    if (!keep(seed, planted, candidate, best)) break;
    candidate = best;
  }
  return best;
}

}  // namespace ubep::test
