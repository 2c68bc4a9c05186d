#include "conformance/staged_run.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "api/checks.hpp"
#include "engine/engine_impl.hpp"
#include "support/compare.hpp"
#include "support/experts.hpp"

namespace ubep {

template class EngineImpl<test::StagedFabric>;

namespace test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr std::byte kPoison{0xff};  // a NaN in every type
constexpr int kMostTurns = 400'000;

Rows dense(std::vector<std::byte>& memory, std::int64_t rows, const Problem& problem) {
  memory.assign(index(rows * problem.hidden) * size_of(problem.dtype), kPoison);
  return {memory.data(), rows, problem.hidden, problem.dtype};
}

bool touches(const Problem& problem, int rank, std::int64_t token, int owner) {
  const std::vector<std::int32_t> owners = owners_of(problem);
  for (int k = 0; k < problem.topk; ++k) {
    const std::int32_t id = problem.ranks[index(rank)].topk_idx[index(token * problem.topk + k)];
    if (id >= 0 && owners[index(id)] == owner) return true;
  }
  return false;
}

}  // namespace

StagedRank::StagedRank(const Case& c, StagedFabric& fabric)
    : case_(c), rank_(fabric.rank()), progress_(c.operations.size()) {
  const EngineOptions options{
      .config = make_config(c.options, c.num_ranks),
      .store = c.stores[index(rank_)] == Store::near ? Store::near : Store::far,
      .most_counts = c.seed % 2 == 0 ? 0 : 16 * 1024};  // 0: owners publish base tables
  engine_ = std::make_shared<EngineImpl<StagedFabric>>(fabric, options);
  for (int i = 0; i < c.num_handles; ++i) handles_.push_back(std::make_unique<HandleState>());
}

void StagedRank::turn(Random& random) {
  const int choice = random.below(8);
  if (choice == 0) engine_->look_for_losses();
  if (choice == 1 || choice == 2) try_next(random);
  if (choice > 2) (void)engine_->step(0, 1);
  collect();
}

bool StagedRank::finished() const {
  return next_ == case_.events.size() &&
         std::all_of(progress_.begin(), progress_.end(), [](const Progress& p) {
           return p.stage == Stage::idle || p.stage == Stage::ended;
         });
}

void StagedRank::try_next(Random& random) {
  if (next_ == case_.events.size()) {
    // Gives up a combine that is under way: peers must not be held up by it.
    for (int i = 0; i < static_cast<int>(progress_.size()); ++i) {
      if (progress(i).stage != Stage::combining || !random.one_in(6)) continue;
      engine_->release(handle_of(i));
      progress(i).stage = Stage::ended;
    }
    return;
  }
  const Event& event = case_.events[next_];
  const bool done = event.dispatch ? start_dispatch(event.operation) : end(event.operation, random);
  if (done) ++next_;
}

bool StagedRank::is_busy(const HandleState& handle) const {
  return handle.kind != OpKind::none && handle.state.load_acquire() == HandleState::pending;
}

bool StagedRank::start_dispatch(int number) {
  const Operation& op = operation(number);
  HandleState& h = handle_of(number);
  if (is_busy(h)) return false;
  const RankInput& in = input(number);
  if (!place_x(number)) return false;
  Status status;
  if (op.cached >= 0) {
    const HandleState& cached = *handles_[index(op.cached)];
    if (cached.kind == OpKind::dispatch && is_busy(cached)) return false;
    status = engine_->start_cached_dispatch(progress(number).x, cached, h);
  } else {
    const RoutingView routing{.topk_idx = in.topk_idx,
                              .topk_weights = in.topk_weights,
                              .num_tokens = static_cast<std::uint32_t>(in.tokens),
                              .topk = op.problem.topk};
    const GroupConfig config = make_config(case_.options, case_.num_ranks);
    status = engine_->start_dispatch(progress(number).x, routing,
                                     resolve(local(number).options, config, {}).options, h);
  }
  if (!accept(number, "start_dispatch", status)) return false;
  progress(number).stage = Stage::dispatching;
  return true;
}

bool StagedRank::place_x(int number) {
  Progress& p = progress(number);
  const Problem& problem = operation(number).problem;
  const RankInput& in = input(number);
  if (p.x.hidden != 0) return true;
  if (local(number).input) {
    Rows x;
    const Status status = engine_->input(in.tokens, problem.hidden, problem.dtype, x);
    if (!accept(number, "input", status)) return false;
    p.x = x;
  } else {
    p.x = dense(p.x_memory, in.tokens, problem);
  }
  const auto row_bytes = index(p.x.row_bytes());
  for (std::int64_t i = 0; i < in.tokens; ++i) {
    std::memcpy(p.x.row(i), in.x.data() + index(i) * row_bytes, row_bytes);
  }
  return true;
}

bool StagedRank::end(int number, Random& random) {
  Progress& p = progress(number);
  const bool release = operation(number).release;
  const bool early = release && !is_repeated(number) && random.one_in(4);
  if (p.stage != Stage::received && !early) return false;
  if (!release) return start_combine(number);
  // The views hold what they held: nobody has written into this slot since.
  if (p.stage == Stage::received) check_received(number);
  engine_->release(handle_of(number));
  p.stage = Stage::ended;
  return true;
}

bool StagedRank::start_combine(int number) {
  Progress& p = progress(number);
  HandleState& h = handle_of(number);
  const Problem& problem = operation(number).problem;
  check_received(number);
  const bool own_y = local(number).own_y;
  const Rows y = own_y ? dense(p.y_memory, h.output.num_rows, problem) : h.output;
  run_experts(h.received, problem, rank_, local(number).options.weighting, y);
  p.out = dense(p.out_memory, input(number).tokens, problem);
  CombineArgs args{.out = p.out};
  if (own_y) args.y = y;
  if (!accept(number, "start_combine", engine_->start_combine(h, args))) return false;
  p.stage = Stage::combining;
  return true;
}

// Checks what has become complete.
void StagedRank::collect() {
  for (int i = 0; i < static_cast<int>(progress_.size()); ++i) {
    Progress& p = progress(i);
    if (p.stage != Stage::dispatching && p.stage != Stage::combining) continue;
    const HandleState& h = handle_of(i);
    // acquires: status and results; everything happens on this thread.
    if (h.state.load_acquire() != HandleState::complete) continue;
    check_status(i, h.status);
    if (p.stage == Stage::dispatching) {
      p.stage = Stage::received;
      check_received(i);
    } else {
      p.stage = Stage::ended;
      check_combined(i);
    }
  }
}

void StagedRank::check_status(int number, const Status& status) {
  if (status.ok()) return;
  const bool expected = status.code == Code::peer_lost && victim_ >= 0 && !loss_reported_ &&
                        status.missing == low_bit(victim_) && status.peer == victim_;
  if (!expected) fail(number, status.message());
  loss_reported_ = true;
}

void StagedRank::check_received(int number) {
  Progress& p = progress(number);
  const Received& received = handle_of(number).received;
  Problem problem = operation(number).problem;
  RankSet absent = RankSet::all(case_.num_ranks);
  absent -= handle_of(number).sources;
  absent.for_each([&](int q) {
    if (q != victim_) fail(number, "a rank that is alive is missing among the sources");
    problem.sources.reset(index(q));
  });
  // A source that pushes can die after its record and before its rows: they are zero.
  const auto& sources = handle_of(number).routed->receive.sources;
  if (!absent.empty() && sources[index(victim_)].num_rows() != 0) {
    problem.zeroed.set(index(victim_));
    problem.sources.set(index(victim_));
  }
  const std::string difference = compare_received(
      received,
      absent.empty() ? operation(number).received[index(rank_)] : expected_received(problem, rank_),
      problem);
  if (!difference.empty()) fail(number, difference);
  p.outcome.received = true;
  p.outcome.sources = problem.sources;
}

void StagedRank::check_combined(int number) {
  Progress& p = progress(number);
  const HandleState& h = handle_of(number);
  const Problem& problem = operation(number).problem;
  if (h.leased) fail(number, "combine left the lease");
  if (std::ssize(h.valid) != p.out.num_rows) fail(number, "valid: wrong size");
  for (std::int64_t token = 0; token < p.out.num_rows; ++token) {
    if (h.valid[index(token)] != 0) continue;
    if (victim_ < 0 || !touches(problem, rank_, token, victim_)) {
      fail(number, "token " + std::to_string(token) + " is invalid, its experts are alive");
    }
  }
  const std::string difference = compare_out(p.out, operation(number).out[index(rank_)], h.valid);
  if (!difference.empty()) fail(number, difference);
  p.outcome.valid = h.valid;
}

// True: started. False: not yet.
bool StagedRank::accept(int number, const char* what, const Status& status) const {
  if (status.ok()) return true;
  if (status.code == Code::not_ready || status.code == Code::slot_busy) return false;
  fail(number, std::string(what) + ": " + status.message());
}

void StagedRank::fail(int number, const std::string& what) const {
  throw std::runtime_error("rank " + std::to_string(rank_) + ", operation " +
                           std::to_string(number) + ": " + what);
}

std::string StagedRank::state() const {
  std::string text = "rank " + std::to_string(rank_) + " at event " + std::to_string(next_);
  for (int i = 0; i < static_cast<int>(progress_.size()); ++i) {
    const Stage stage = progress_[index(i)].stage;
    if (stage != Stage::dispatching && stage != Stage::combining) continue;
    const HandleState& h = *handles_[index(operation(i).handle)];
    text += "; " + engine_->waits_for(h).message();
  }
  return text;
}

const Outcome& StagedRank::outcome(int number) const { return progress_[index(number)].outcome; }
const Operation& StagedRank::operation(int number) const { return case_.operations[index(number)]; }
const LocalChoice& StagedRank::local(int number) const {
  return operation(number).local[index(rank_)];
}
const RankInput& StagedRank::input(int number) const {
  return operation(number).problem.ranks[index(rank_)];
}
StagedRank::Progress& StagedRank::progress(int number) { return progress_[index(number)]; }
HandleState& StagedRank::handle_of(int number) {
  return *handles_[index(operation(number).handle)];
}
bool StagedRank::is_repeated(int number) const {
  return std::any_of(case_.operations.begin(), case_.operations.end(),
                     [&](const Operation& op) { return op.origin == number; });
}

Case make_staged_case(std::uint64_t seed) {
  constexpr int kMostElements = 600;
  for (std::uint64_t i = 0;; ++i) {
    Case c = make_case(seed + i * 1'000'003, {.max_ranks = 4, .max_operations = 8});
    if (c.options.max_tokens * c.options.max_hidden > kMostElements) continue;
    c.seed = seed;
    for (Operation& op : c.operations) {
      for (LocalChoice& local : op.local) {
        const bool copied =
            local.options.path != Path::read && local.options.path != Path::automatic;
        if (!copied) local.options.path = Path::pull;
        local.options.mapped_view = false;
      }
    }
    return c;
  }
}

namespace {

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

// The ranks of one case, moved on in random bursts.
class Run {
 public:
  explicit Run(const Case& c)
      : case_(c), random_(c.seed, 17, 0), world_(world_options(c)), gone_(index(c.num_ranks)) {
    for (int r = 0; r < c.num_ranks; ++r) ranks_.emplace_back(c, world_.rank(r));
  }

  void kill_one(int victim) {
    victim_ = random_.below(case_.num_ranks);
    if (victim >= 0) victim_ = victim;
    death_ = random_.below(random_.one_in(2) ? 200 : 4000);
  }

  void run() {
    int turns = 0;
    while (!all_gone()) {
      const int r = random_.below(case_.num_ranks);
      for (int burst = random_.between(1, 12); burst > 0 && !gone_[index(r)]; --burst) {
        if (++turns > kMostTurns) throw std::runtime_error("no end in sight: " + waits());
        if (turns == death_) die();
        if (!gone_[index(r)]) turn(r);
      }
    }
    if (turns < death_) victim_ = -1;  // it had ended before its death
    for (int r = 0; r < case_.num_ranks; ++r) {
      const std::string held = r == victim_ ? "" : world_.rank(r).held();
      if (!held.empty()) throw std::runtime_error(held);
    }
    if (victim_ >= 0) check_agreement();
  }

 private:
  static StagedWorld::Options world_options(const Case& c) {
    Random random(c.seed, 17, 1);
    StagedWorld::Options options{.seed = c.seed, .max_delay = random.between(1, 5)};
    const GroupConfig config = make_config(c.options, c.num_ranks);
    for (int r = 0; r < c.num_ranks; ++r) {
      options.segment_bytes.push_back(SegmentLayout(config, r).bytes());
      if (config.push) options.inbox_bytes.push_back(SegmentLayout(config, r).inbox_bytes());
    }
    return options;
  }

  bool all_gone() const { return std::count(gone_.begin(), gone_.end(), false) == 0; }

  void turn(int r) {
    StagedRank& rank = ranks_[index(r)];
    rank.turn(random_);
    if (!rank.finished()) return;
    // Some leave while their peers are still at work.
    if (random_.one_in(2)) rank.close();
    gone_[index(r)] = true;
  }

  void die() {
    if (gone_[index(victim_)]) {
      victim_ = -1;
      return;
    }
    gone_[index(victim_)] = true;
    world_.end(victim_, PeerState::dead);
    for (StagedRank& rank : ranks_) rank.expect_loss_of(victim_);
  }

  std::string waits() const {
    std::string text;
    for (int r = 0; r < case_.num_ranks; ++r) {
      if (!gone_[index(r)]) text += "\n  " + ranks_[index(r)].state();
    }
    return text;
  }

  // A rank took part in a stage or it did not, in the eyes of all survivors.
  void check_agreement() const {
    for (int i = 0; i < static_cast<int>(case_.operations.size()); ++i) {
      int dispatched = -1;  // -1 = nobody knows yet
      int combined = -1;
      for (int r = 0; r < case_.num_ranks; ++r) {
        if (r == victim_) continue;
        const Outcome& outcome = ranks_[index(r)].outcome(i);
        if (outcome.received) agree(dispatched, outcome.sources[index(victim_)], i);
        for (std::int64_t t = 0; t < std::ssize(outcome.valid); ++t) {
          if (!touches(case_.operations[index(i)].problem, r, t, victim_)) continue;
          agree(combined, outcome.valid[index(t)] != 0, i);
        }
      }
    }
  }

  static void agree(int& known, bool took_part, int operation) {
    if (known == -1) known = took_part ? 1 : 0;
    if (known != (took_part ? 1 : 0)) {
      throw std::runtime_error("operation " + std::to_string(operation) +
                               ": survivors disagree about the dead rank's part");
    }
  }

  const Case& case_;
  Random random_;
  StagedWorld world_;
  std::vector<StagedRank> ranks_;
  std::vector<bool> gone_;
  int victim_ = -1;
  int death_ = -1;
};

}  // namespace

std::string run_staged(const Case& c, const StagedRunOptions& options) {
  const SeedOnCrash seed_on_crash(c.seed);
  try {
    Run run(c);
    if (options.a_rank_dies) run.kill_one(options.victim);
    run.run();
    return "";
  } catch (const std::exception& error) {
    return std::string(error.what()) + " [rerun: UBEP_SEED=" + std::to_string(c.seed) + "; " +
           describe(c) + "]";
  }
}

}  // namespace test
}  // namespace ubep
