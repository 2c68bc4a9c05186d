#include "simulation/sim_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "api/checks.hpp"
#include "protocol/segment_layout.hpp"
#include "sim/engine_sim.hpp"
#include "support/compare.hpp"
#include "support/experts.hpp"

namespace ubep::test {
namespace {

using sim::kMicrosecond;
using sim::kNanosecond;

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr std::byte kPoison{0xff};  // a NaN in every type
constexpr sim::Time kPatience = 5'000 * kMicrosecond;

Rows dense(std::vector<std::byte>& memory, const Rows& shape) {
  Rows rows = shape;
  memory.assign(index(rows.num_rows * rows.row_bytes()), kPoison);
  rows.data = memory.data();
  return rows;
}

Rows outputs(std::int64_t num_rows, const Problem& problem) {
  return {nullptr, num_rows, problem.output_hidden(), problem.output_dtype()};
}

Ranks bit(int rank) { return Ranks().set(index(rank)); }

Ranks ranks_of(const RankSet& set) {
  Ranks ranks;
  set.for_each([&](int rank) { ranks |= bit(rank); });
  return ranks;
}

// The ranks that own an expert of the token.
Ranks owners_of_token(const Problem& problem, int rank, std::int64_t token) {
  const std::vector<std::int32_t> owners = owners_of(problem);
  Ranks set;
  for (int k = 0; k < problem.topk; ++k) {
    const std::int32_t id = problem.ranks[index(rank)].topk_idx[index(token * problem.topk + k)];
    if (id >= 0) set |= bit(owners[index(id)]);
  }
  return set;
}

}  // namespace

SimRank::SimRank(const Setup& setup, sim::World& world, int rank, Losses& losses)
    : setup_(setup),
      case_(setup.calls),
      world_(world),
      rank_(rank),
      losses_(losses),
      random_(setup.world.seed, 7, static_cast<std::uint64_t>(rank)),
      progress_(case_.operations.size()) {
  const EngineOptions options{
      .config = group_of(setup),
      .store = case_.stores[index(rank_)] == Store::near ? Store::near : Store::far,
      .most_counts = setup.most_counts,
      .tile_bytes = setup.tile_bytes,
      .start_bytes = setup.start_bytes,
      .epoch = setup.first_epoch,
      .scrub_every = setup.scrub_every,
      .absent = setup.absent < 0 ? std::vector<int>{} : std::vector<int>{setup.absent}};
  engine_ = sim::make_sim_engine(world.fabric(rank), options);
  if (!setup.lanes.empty()) {
    const Setup::Lanes& lanes = setup.lanes[index(rank)];
    engine_->set_lanes(setup.world.lanes, lanes.roles, lanes.order);
  }
  if (setup.absent >= 0) reported_.set(index(setup.absent));  // nobody is told of it
  crew_ = std::make_unique<sim::Crew>(world, rank, *engine_);
  for (int i = 0; i < case_.num_handles; ++i) handles_.push_back(std::make_unique<HandleState>());
}

void SimRank::live() {
  const bool is_wrong = setup_.culprit.alteration != Alteration::none;
  progressed_ = world_.now();
  while (!finished() && !failed_) {
    const std::uint64_t before = world_.news(rank_);
    if (turn()) {
      progressed_ = world_.now();
      world_.stir(rank_);
    } else if (is_wrong && world_.now() > progressed_ + kPatience) {
      // A caller that leaves out a call can make others wait: their deadlines end that.
      note(-1, "gives up: " + state());
      failed_ = true;
      losses_.gone |= bit(rank_);
    } else if (!random_.one_in(8)) {
      const auto patience = static_cast<sim::Time>(random_.between(1, 40)) * kMicrosecond;
      world_.wait_for_news(rank_, before, world_.now() + patience);
    }
  }
  crew_->end();
  // Some leave while their peers are still at work.
  if (failed_ || is_wrong || random_.one_in(2)) {
    if (is_wrong) losses_.gone |= bit(rank_);
    engine_->close();
    note(-1, "closes");
  }
}

bool SimRank::turn() {
  const int choice = random_.below(8);
  bool done = false;
  if (choice == 0) engine_->look_for_losses();
  if (choice == 1 || choice == 2) done = try_next();
  if (choice == 2) done = publish_some() || done;
  if (choice > 2) done = engine_->step(0, world_.options().lanes) != 0;
  return collect() || done;
}

bool SimRank::finished() const {
  return next_ == case_.events.size() &&
         std::all_of(progress_.begin(), progress_.end(), [](const Progress& p) {
           return p.stage == Stage::idle || p.stage == Stage::ended;
         });
}

bool SimRank::try_next() {
  if (next_ == case_.events.size()) {
    // Gives up a combine that is under way: peers must not be held up by it.
    for (int i = 0; i < static_cast<int>(progress_.size()); ++i) {
      if (progress(i).stage != Stage::combining || !random_.one_in(6)) continue;
      if (!may_give_up(i)) continue;
      if (!progress(i).unpublished.empty()) continue;  // that would end its peers
      release(i);
    }
    return false;
  }
  const Event& event = case_.events[next_];
  const bool done = event.dispatch ? start_dispatch(event.operation) : end(event.operation);
  if (done) ++next_;
  return done;
}

bool SimRank::is_busy(const HandleState& handle) const {
  // acquires: nothing; lanes of one thread.
  return handle.kind != OpKind::none && handle.state.load_acquire() == HandleState::pending;
}

bool SimRank::is_open(int handle) const {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    const Stage stage = progress_[i].stage;
    if (case_.operations[i].handle != handle) continue;
    if (stage == Stage::dispatching || stage == Stage::combining) return true;
  }
  return false;
}

DispatchOptions SimRank::options_of(int number) const {
  DispatchOptions options = local(number).options;
  if (is_culprit(number) && setup_.culprit.alteration == Alteration::reduction) {
    options.reduction =
        options.reduction == Reduction::per_rank ? Reduction::exact : Reduction::per_rank;
  }
  if (is_culprit(number) && setup_.culprit.alteration == Alteration::layout) {
    const bool rank_major = options.layout == Layout::rank_major;
    options = {.layout = rank_major ? Layout::expert_major : Layout::rank_major,
               .path = Path::pull,
               .quant = options.quant};
  }
  return resolve(options, group_of(setup_), {.hosts = !setup_.world.hosts.empty()}).options;
}

bool SimRank::start_dispatch(int number) {
  const Operation& op = operation(number);
  HandleState& h = handle_of(number);
  if (is_busy(h)) return false;
  const RankInput& in = input(number);
  crew_->call_in();
  // A lane may have completed what the handle did before: that is looked at first.
  const bool placed = !is_open(op.handle) && place_x(number);
  Status status;
  bool possible = placed;
  if (placed && op.cached >= 0) {
    const HandleState& cached = *handles_[index(op.cached)];
    possible = cached.kind != OpKind::dispatch || !is_busy(cached);
    if (possible) status = engine_->start_cached_dispatch(input_of(number), cached, h);
  } else if (placed) {
    const RoutingView routing{.topk_idx = in.topk_idx,
                              .topk_weights = in.topk_weights,
                              .num_tokens = static_cast<std::uint32_t>(in.tokens),
                              .topk = op.problem.topk};
    status = engine_->start_dispatch(input_of(number), routing, options_of(number), h);
  }
  crew_->let_out();
  if (!possible || !accept(number, "start_dispatch", status)) return false;
  note(number, fmt::format("dispatch of {} tokens, epoch {}", in.tokens, h.epoch));
  progress(number).stage = Stage::dispatching;
  if (is_culprit(number) && setup_.culprit.alteration == Alteration::record) spoil_record(h);
  return true;
}

// Overwrites an entry for some other rank, while that one may already be reading it.
void SimRank::spoil_record(const HandleState& h) {
  const SendPlan& plan = h.routed->send;
  const int victim = (rank_ + 1) % case_.num_ranks;
  const std::uint32_t first = plan.off[index(victim)];
  const std::uint32_t count = plan.off[index(victim) + 1] - first;
  if (count == 0) return;
  const SegmentLayout layout(group_of(setup_), rank_);
  const std::uint32_t i =
      first + static_cast<std::uint32_t>(random_.below(static_cast<int>(count)));
  const Range range = layout.entries(h.slot, i, 1);
  // Of a torn entry each part is wrong by itself; a wrong weight alone could not be told.
  const Entry wrong{0xffff'fff0, 0xfff0, 0xfff0, plan.entries[i].weight};
  sim::SimFabric& fabric = world_.fabric(rank_);
  std::memcpy(fabric.claim(range), &wrong, sizeof(wrong));
  fabric.commit(range, Store::near);
  note(-1, "spoils its record");
}

Input SimRank::input_of(int number) {
  Progress& p = progress(number);
  const std::vector<int>& bytes = operation(number).problem.payloads;
  p.payloads.clear();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    p.payloads.push_back({"payload", input(number).payloads[i].data(), bytes[i]});
  }
  Input in{p.x, p.payloads};
  const int tail = local(number).tail;
  if (tail >= 0 && p.x.dtype == operation(number).problem.dtype) {
    const std::int64_t rows = operation(number).received[index(rank_)].num_rows + tail;
    p.rows = dense(p.rows_memory, {nullptr, rows, p.x.hidden, p.x.dtype});
    in.out = p.rows;
  }
  return in;
}

bool SimRank::place_x(int number) {
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
    p.x = dense(p.x_memory, {nullptr, in.tokens, problem.hidden, problem.dtype});
  }
  const auto row_bytes = index(p.x.row_bytes());
  for (std::int64_t i = 0; i < in.tokens; ++i) {
    std::memcpy(p.x.row(i), in.x.data() + index(i) * row_bytes, row_bytes);
  }
  if (is_culprit(number) && setup_.culprit.alteration == Alteration::dtype) {
    p.x.dtype = problem.dtype == DType::bf16 ? DType::fp16 : DType::bf16;
    if (problem.dtype == DType::fp32) p.x.hidden *= 2;
    if (problem.dtype == DType::u8) p.x.hidden /= 2;
  }
  return true;
}

bool SimRank::end(int number) {
  Progress& p = progress(number);
  const bool altered = is_culprit(number) && setup_.culprit.alteration == Alteration::release;
  const bool releases = operation(number).release || altered;
  const bool early = releases && !is_repeated(number) && random_.one_in(4) && may_give_up(number);
  if (p.stage != Stage::received && !early) return false;
  if (!releases) return start_combine(number);
  // The views hold what they held: nobody has written into this slot since.
  if (p.stage == Stage::received) check_received(number);
  release(number);
  return true;
}

// A gateway that gives up takes what it relays along.
bool SimRank::may_give_up(int number) const { return !relays(number); }

bool SimRank::relays(int number) const { return is_relayed(setup_, local(number)); }

bool SimRank::same_host(int r) const { return setup_.world.hosts.same(r, rank_); }

// Whoever may relay what others have for the host of rank `r`, or its sums.
Ranks SimRank::gateways_of(int r) const {
  const HostMap& hosts = setup_.world.hosts;
  Ranks ranks;
  for (int q = hosts.first(hosts.host_of(r)); q < hosts.end(hosts.host_of(r)); ++q) ranks |= bit(q);
  return ranks;
}

void SimRank::release(int number) {
  crew_->call_in();
  engine_->release(handle_of(number));
  crew_->let_out();
  note(number, "released");
  progress(number).stage = Stage::ended;
}

bool SimRank::start_combine(int number) {
  Progress& p = progress(number);
  HandleState& h = handle_of(number);
  const Problem& problem = operation(number).problem;
  check_received(number);
  const bool own_y = local(number).own_y;
  const Rows y = own_y ? dense(p.y_memory, outputs(h.output.num_rows, problem)) : h.output;
  Problem shown = problem;
  shown.sources = ranks_of(h.sources);
  shown.layout = h.received.layout;  // of a caller's error, too
  const bool in_place = h.routed->options.in_place;
  const bool by_expert = local(number).by_expert && !setup_.returns && !(in_place && own_y);
  p.late = by_expert && !in_place;
  if (p.late) {  // each expert's are written before they are published
    for (std::int64_t i = 0; i < y.num_rows; ++i) std::fill_n(y.row(i), y.row_bytes(), kPoison);
    p.shown = shown;
    p.y = y;
  } else {
    run_experts(h.received, shown, rank_, local(number).options.weighting, y);
  }
  p.out = dense(p.out_memory, outputs(input(number).tokens, problem));
  CombineArgs args{.out = p.out};
  args.unweighted = problem.unweighted;
  args.added = added_rows(problem, rank_);
  if (own_y) args.y = y;
  args.by_expert = by_expert;
  crew_->call_in();
  const Status status = engine_->start_combine(h, args);
  crew_->let_out();
  if (!accept(number, "start_combine", status)) return false;
  if (args.by_expert) {
    for (std::size_t e = 0; e < experts_of(problem, rank_).size(); ++e) {
      p.unpublished.push_back(static_cast<int>(e));
    }
  }
  note(number, "combine");
  p.stage = Stage::combining;
  return true;
}

// Outputs of one expert, in any order.
bool SimRank::publish_some() {
  for (int i = 0; i < static_cast<int>(progress_.size()); ++i) {
    std::vector<int>& experts = progress(i).unpublished;
    if (experts.empty() || progress(i).stage != Stage::combining) continue;
    std::swap(experts.back(), experts[index(random_.below(static_cast<int>(experts.size())))]);
    crew_->call_in();
    // acquires: nothing; a rank that has failed publishes nothing more.
    const bool over = handle_of(i).state.load_acquire() == HandleState::complete;
    if (progress(i).late && !over) {
      run_expert(handle_of(i).received, progress(i).shown, {rank_, experts.back()}, progress(i).y);
    }
    const bool published = over || engine_->publish_expert(handle_of(i), experts.back());
    crew_->let_out();
    if (!published) fail(i, "publish_expert: was published before");
    note(i, fmt::format("publishes expert {}", experts.back()));
    experts.pop_back();
    return true;
  }
  return false;
}

// Checks what has become complete.
bool SimRank::collect() {
  bool any = false;
  for (int i = 0; i < static_cast<int>(progress_.size()); ++i) {
    Progress& p = progress(i);
    if (p.stage != Stage::dispatching && p.stage != Stage::combining) continue;
    const HandleState& h = handle_of(i);
    // acquires: status and results; everything happens on this thread.
    if (h.state.load_acquire() != HandleState::complete) continue;
    any = true;
    note(i, p.stage == Stage::dispatching ? "dispatch is complete" : "combine is complete");
    check_status(i, h.status);
    if (failed_) return true;
    if (p.stage == Stage::dispatching) {
      p.stage = Stage::received;
      check_received(i);
    } else {
      p.stage = Stage::ended;
      check_combined(i);
    }
  }
  return any;
}

// After a caller's error any other rank may have failed, and peers may know before its own caller.
Ranks SimRank::may_be_gone() const {
  return setup_.culprit.alteration == Alteration::none ? losses_.gone : ~bit(rank_);
}

// A mismatch ends this rank's part; only a caller's error may lead to one.
void SimRank::check_status(int number, const Status& status) {
  if (status.ok()) return;
  note(number, status.message());
  const bool ends = status.code == Code::mismatch || status.code == Code::corrupt;
  if (ends && setup_.culprit.alteration != Alteration::none) {
    failed_ = true;
    losses_.gone |= bit(rank_);
    losses_.failed |= bit(rank_);
    return;
  }
  // `missing` has room for the first 64.
  const bool is_loss = status.code == Code::peer_lost && status.peer >= 0 &&
                       (status.peer >= 64 || (Ranks(status.missing) & bit(status.peer)).any());
  if (!is_loss) fail(number, status.message());
  const Ranks lost = Ranks(status.missing) | bit(status.peer);
  if ((lost & ~may_be_gone()).any() || (lost & reported_).any()) fail(number, status.message());
  reported_ |= lost;
}

void SimRank::check_received(int number) {
  Progress& p = progress(number);
  const HandleState& h = handle_of(number);
  const Received& received = h.received;
  Problem problem = operation(number).problem;
  const Ranks sources = ranks_of(h.sources);
  const Ranks absent = ranks_of(RankSet::all(case_.num_ranks)) & ~sources;
  Ranks excused = may_be_gone();
  for (int q = 0; q < case_.num_ranks; ++q) {
    if (relays(number) && (gateways_of(rank_) & may_be_gone()).any() && !same_host(q)) {
      excused |= bit(q);
    }
  }
  if ((absent & ~excused).any()) {
    fail(number, "a rank that is alive is missing among the sources");
  }
  check_agreed(number, sources);
  // A source that pushes can die after its record and before its rows: they are zero.
  for (int q = 0; q < case_.num_ranks; ++q) {
    const bool has_rows = h.routed->receive.sources[index(q)].num_rows() != 0;
    if (absent[index(q)] && has_rows) problem.zeroed |= bit(q);
  }
  problem.sources = sources | problem.zeroed;
  const bool differs = repeats_error(number) && setup_.culprit.alteration != Alteration::record;
  if (differs) return;  // its own error: nothing to compare with
  const std::string difference = compare_received(
      received,
      absent.none() ? operation(number).received[index(rank_)] : expected_received(problem, rank_),
      problem, p.rows);
  if (!difference.empty()) fail(number, difference);
  p.outcome.received = true;
  p.outcome.sources = problem.sources;
}

// Nobody who went on had the same operation as a rank that differs in it.
void SimRank::check_agreed(int number, const Ranks& others) const {
  const Culprit& culprit = setup_.culprit;
  const bool differs = culprit.alteration == Alteration::dtype ||
                       culprit.alteration == Alteration::reduction ||
                       culprit.alteration == Alteration::layout;
  if (!differs || culprit.operation != number) return;
  const Ranks wrong = rank_ == culprit.rank ? others & ~bit(rank_) : others & bit(culprit.rank);
  if (wrong.any()) fail(number, "ranks that differ did not notice");
}

void SimRank::check_combined(int number) {
  Progress& p = progress(number);
  const HandleState& h = handle_of(number);
  const Problem& problem = operation(number).problem;
  if (h.leased) fail(number, "combine left the lease");
  if (std::ssize(h.valid) != p.out.num_rows) fail(number, "valid: wrong size");
  if (repeats_error(number)) return;
  for (std::int64_t token = 0; token < p.out.num_rows; ++token) {
    if (h.valid[index(token)] != 0) continue;
    Ranks needed = owners_of_token(problem, rank_, token);
    for (int r = 0; r < case_.num_ranks && relays(number); ++r) {
      if (needed[index(r)] && !same_host(r)) needed |= gateways_of(r);
    }
    if ((needed & may_be_gone()).none()) {
      fail(number, fmt::format("token {} is invalid, its experts are alive", token));
    }
  }
  const std::string difference = compare_out(p.out, operation(number).out[index(rank_)], h.valid);
  if (!difference.empty()) fail(number, difference);
  p.outcome.valid = h.valid;
}

// True: started. False: not yet.
bool SimRank::accept(int number, const char* what, const Status& status) {
  if (status.ok()) return true;
  if (status.code == Code::not_ready || status.code == Code::slot_busy) return false;
  if (status.code == Code::mismatch || status.code == Code::corrupt) {
    check_status(number, status);
    return false;
  }
  fail(number, std::string(what) + ": " + status.message());
}

void SimRank::fail(int number, const std::string& what) const {
  throw std::runtime_error(fmt::format("rank {}, operation {}: {}", rank_, number, what));
}

void SimRank::note(int number, const std::string& text) {
  if (!world_.keeps_transcript()) return;
  world_.note(rank_, number < 0 ? text : fmt::format("operation {}: {}", number, text));
}

std::string SimRank::state() const {
  std::string text = fmt::format("rank {} at event {}", rank_, next_);
  for (int i = 0; i < static_cast<int>(progress_.size()); ++i) {
    const Stage stage = progress_[index(i)].stage;
    if (stage != Stage::dispatching && stage != Stage::combining) continue;
    const HandleState& h = *handles_[index(operation(i).handle)];
    text += "; " + engine_->waits_for(&h).message();
  }
  return text;
}

const Outcome& SimRank::outcome(int number) const { return progress_[index(number)].outcome; }
// The operation that differs, or a cached one that goes back to it.
bool SimRank::repeats_error(int number) const {
  while (number >= 0 && !is_culprit(number)) number = operation(number).origin;
  return number >= 0;
}

bool SimRank::is_culprit(int number) const {
  return setup_.culprit.alteration != Alteration::none && setup_.culprit.rank == rank_ &&
         setup_.culprit.operation == number;
}
const Operation& SimRank::operation(int number) const { return case_.operations[index(number)]; }
const LocalChoice& SimRank::local(int number) const {
  return operation(number).local[index(rank_)];
}
const RankInput& SimRank::input(int number) const {
  return operation(number).problem.ranks[index(rank_)];
}
SimRank::Progress& SimRank::progress(int number) { return progress_[index(number)]; }
HandleState& SimRank::handle_of(int number) { return *handles_[index(operation(number).handle)]; }
bool SimRank::is_repeated(int number) const {
  return std::any_of(case_.operations.begin(), case_.operations.end(),
                     [&](const Operation& op) { return op.origin == number; });
}

}  // namespace ubep::test
