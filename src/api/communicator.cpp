#include "ubep/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>

#include "api/checks.hpp"
#include "api/fork_guard.hpp"
#include "api/path_choice.hpp"
#include "api/set_up.hpp"
#include "api/turns.hpp"
#include "base/system_limits.hpp"
#include "engine/engine.hpp"
#include "engine/waiter.hpp"
#include "fabric/shm/fabric.hpp"

namespace ubep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kIdleStepsPerClock = 16;
constexpr std::chrono::milliseconds kLookEvery{1};
constexpr std::uint64_t kDispatchesPerProbe = 1024;

}  // namespace

struct Communicator::Impl {
  GroupConfig config;
  std::chrono::milliseconds timeout{};
  Store store = Store::automatic;  // as asked for
  CommunicatorFacts facts;
  MemoryPlan memory;
  int rank = 0;
  bool spin = false;
  Crowd crowd;
  bool closed = false;
  int generation = fork_generation();
  int idle_steps = 0;
  Clock::time_point last_look;
  std::vector<std::int32_t> masked_ids;  // of the dispatch that is being started
  Turns turns;
  // Destroyed in reverse: handles find the engine gone before its memory is.
  std::unique_ptr<ShmFabric> fabric;
  std::shared_ptr<Engine> engine;

  JoinRequest prepare(const Bootstrap& bootstrap, const CommunicatorOptions& options);
  void make_engine();

  void check_process() const {
    if (generation != fork_generation()) {
      throw Error(ErrorCode::misuse, "this communicator belongs to the parent of a fork");
    }
  }

  void check_ours(const HandleState& h) const {
    // Compares without counting references: all lanes may poll at once.
    if (h.engine.owner_before(engine) || engine.owner_before(h.engine)) {
      throw Error(ErrorCode::misuse,
                  fmt::format("the handle has no dispatch of this communicator: {}",
                              h.kind == OpKind::none ? "it was never used, or moved from"
                              : h.engine.expired()   ? "its communicator is gone"
                                                     : "it is of another one"));
    }
  }

  void adopt(HandleState& h) const {
    h.generation = generation;
    h.engine = engine;
  }

  static void check_free(const HandleState& h) {
    if (h.leased && !h.engine.expired()) {
      throw Error(ErrorCode::misuse, "the handle holds a lease: combine or release it first");
    }
  }

  // The ids, -1 where a token is not active.
  std::span<const std::int32_t> active_ids(const Routing& routing) {
    if (routing.active.empty()) return routing.topk_idx;
    masked_ids.assign(routing.topk_idx.begin(), routing.topk_idx.end());
    const auto topk = static_cast<std::size_t>(routing.topk);
    for (std::size_t i = 0; i < routing.active.size(); ++i) {
      if (routing.active[i] == 0) std::fill_n(masked_ids.begin() + i * topk, topk, -1);
    }
    return masked_ids;
  }

  Status too_many_tokens(const ConstRows& x) const {
    Status status;
    status.code = Code::no_capacity;
    status.kind = OpKind::dispatch;
    status.rank = static_cast<std::int16_t>(rank);
    status.what = "x.num_rows";
    status.seen = static_cast<std::uint64_t>(x.num_rows);
    status.expected = static_cast<std::uint64_t>(config.max_tokens);
    return status;
  }

  Clock::time_point deadline() const { return Clock::now() + timeout; }

  void take_facts() {
    const FabricFacts& found = fabric->facts();
    const StoreChoice choice = choose_store(store, found.placement);
    facts.placement = found.placement;
    facts.flag_one_way_ns = found.flag_one_way_ns;
    facts.store = choice.store;
    facts.store_reason = choice.reason;
  }

  // After a dispatch that this rank has waited for: others have, too, or are about to. Hosts move
  // CPUs about, and nothing but a probe shows it.
  void probe_now_and_then(const HandleState& h) {
    if (h.epoch % kDispatchesPerProbe != 0) return;
    if (!fabric->probe_again(h.epoch / kDispatchesPerProbe, !spin)) return;
    ++facts.probes;
    take_facts();
    engine->set_store(facts.store);
  }

  void refuse_pending(const char* call) const {
    if (!engine->pending()) return;
    throw Error(ErrorCode::misuse, std::string(call) + " while an operation is pending");
  }

  // Of step(): a look for losses every millisecond of idling.
  void look_now_and_then(int done) {
    idle_steps = done > 0 ? 0 : idle_steps + 1;
    if (idle_steps % kIdleStepsPerClock != 0 || idle_steps == 0) return;
    const Clock::time_point now = Clock::now();
    if (now - last_look < kLookEvery) return;
    last_look = now;
    engine->look_for_losses();
  }

  // Repeats `attempt` (which never waits) until it says something else than not_ready.
  template <class Attempt>
  Status insist(Attempt attempt, Clock::time_point until) {
    Waiter waiter(spin, until, crowd);
    for (;;) {
      Status status = attempt();
      if (status.code != Code::not_ready) return status;
      if (engine->step(0, 1) > 0) {
        waiter.busy();
        continue;
      }
      const Waiter::Advice advice = waiter.idle();
      if (advice == Waiter::Advice::again) continue;
      engine->look_for_losses();
      if (advice != Waiter::Advice::expired) continue;
      // However short the wait was, who is dead is told as dead.
      (void)engine->step(0, 1);
      status = attempt();
      if (status.code == Code::not_ready) status.code = Code::timeout;
      return status;
    }
  }

  // The rest of a dispatch that was started, or not.
  Status complete(const Status& started, const HandleState& h, Clock::time_point until) {
    if (!started.ok()) return started;
    const Status status = finish(h, until);
    if (status.ok()) probe_now_and_then(h);
    return status;
  }

  // Steps until the handle's latest operation is complete.
  Status finish(const HandleState& h, Clock::time_point until) {
    const Status status = insist([&h] { return state_of(h); }, until);
    return status.code == Code::timeout ? awaited(h) : status;
  }

  // A timeout that says whom the handle's operation waits for.
  Status awaited(const HandleState& h) const {
    Status status = engine->waits_for(h);
    status.code = Code::timeout;
    return status;
  }

  static Status state_of(const HandleState& h) {
    // acquires: status, views and results of the completed operation; written by finish().
    if (h.state.load_acquire() == HandleState::complete) return h.status;
    Status status;
    status.code = Code::not_ready;
    status.kind = h.kind;
    status.epoch = h.epoch;
    status.what = "it is pending: step() it, or wait()";
    return status;
  }
};

Communicator::Impl& Communicator::here() const {
  if (impl_ == nullptr) throw Error(ErrorCode::misuse, "this communicator was moved from");
  impl_->check_process();
  return *impl_;
}

Communicator::Impl& Communicator::open() const {
  if (here().closed) throw Error(ErrorCode::misuse, "this communicator is closed");
  return *impl_;
}

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    close();
    impl_ = std::move(other.impl_);
  }
  return *this;
}
Communicator::~Communicator() { close(); }

// What may fail before a rank meets the others.
JoinRequest Communicator::Impl::prepare(const Bootstrap& bootstrap,
                                        const CommunicatorOptions& options) {
  rank = bootstrap.rank;
  config = make_config(options, bootstrap.size);
  timeout = timeout_of(options);
  memory = plan_of(config, rank);
  crowd.ranks_per_cpu = ranks_per_cpu(bootstrap.size);
  spin = crowd.ranks_per_cpu == 1;
  store = options.store;
  check_memory(config, rank);
  return request_of(bootstrap, config);
}

void Communicator::Impl::make_engine() {
  try {
    engine = make_shm_engine(*fabric, {.config = config, .store = facts.store});
  } catch (...) {
    fabric->set_state(PeerState::failed);  // the others may have begun
    throw;
  }
}

Communicator Communicator::create(const Bootstrap& bootstrap, const CommunicatorOptions& options) {
  check_bootstrap(bootstrap);
  check_job(bootstrap);
  auto impl = std::make_unique<Impl>();
  try {
    JoinRequest request;
    try {
      request = impl->prepare(bootstrap, options);
    } catch (const std::exception& error) {
      ShmFabric::decline(request_of(bootstrap), bootstrap.threads.get(), error.what());
      throw;
    }
    impl->fabric = ShmFabric::join(request, bootstrap.threads.get());
    impl->facts.probes = impl->fabric->facts().flag_one_way_ns > 0 ? 1 : 0;
    impl->take_facts();
    impl->make_engine();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::setup,
                fmt::format("rank {}: out of memory: {}", bootstrap.rank, explain(ENOMEM)));
  }
  return Communicator(std::move(impl));
}

MemoryPlan Communicator::plan_memory(const CommunicatorOptions& options, int rank, int size) {
  Bootstrap place;
  place.rank = rank;
  place.size = size;
  check_bootstrap(place);
  return plan_of(make_config(options, size), rank);
}

int Communicator::rank() const { return here().rank; }
int Communicator::size() const { return here().config.size; }
int Communicator::num_local_experts() const {
  const Impl& impl = here();
  return impl.config.experts.num_local(impl.rank);
}
const GroupConfig& Communicator::config() const { return open().config; }
CommunicatorFacts Communicator::facts() const { return here().facts; }
MemoryPlan Communicator::memory() const { return here().memory; }

Status Communicator::start_dispatch(const Input& in, const Routing& routing,
                                    const DispatchOptions& options, Handle& handle) {
  return start_round(in, routing, options, handle, {});
}

Status Communicator::start_round(const Input& in, const Routing& routing,
                                 const DispatchOptions& options, Handle& handle,
                                 const LayerRound& round) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "start_dispatch");
  const ConstRows& x = in.x;
  HandleState& h = *handle.state_;
  if (!impl.engine->failure().ok()) return impl.engine->failure();
  Impl::check_free(h);
  check_rows(x, "x", impl.config);
  check_payloads(in, options, impl.config);
  const ResolvedOptions resolved =
      resolve(options, impl.config,
              {.store = impl.facts.store,
               .push = impl.config.push,
               .bytes = static_cast<std::uint64_t>(x.num_rows * x.row_bytes())});
  if (x.num_rows > impl.config.max_tokens) return impl.too_many_tokens(x);
  check_routing(routing, x.num_rows, impl.config);
  check_out(in, resolved.options);
  h.round = round;
  if (round.number == 0) h.layer.active = false;
  const Status status =
      impl.engine->start_dispatch(in,
                                  {.topk_idx = impl.active_ids(routing),
                                   .topk_weights = routing.topk_weights,
                                   .num_tokens = static_cast<std::uint32_t>(x.num_rows),
                                   .topk = routing.topk},
                                  resolved.options, h);
  if (status.ok()) {
    impl.adopt(h);
    h.stats.reason = h.routed->reason = resolved.path_reason;
  }
  return status;
}

Status Communicator::start_dispatch(const Input& in, const Handle& cached, Handle& handle) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "start_dispatch");
  const ConstRows& x = in.x;
  const HandleState& c = *cached.state_;
  HandleState& h = *handle.state_;
  if (!impl.engine->failure().ok()) return impl.engine->failure();
  impl.check_ours(c);
  Impl::check_free(h);
  const Code code = Impl::state_of(c).code;
  const bool dispatched = code == Code::ok || code == Code::peer_lost || code == Code::no_capacity;
  if (c.kind == OpKind::none || (c.kind == OpKind::dispatch && !dispatched)) {
    throw Error(ErrorCode::misuse, "cached: the dispatch of this handle is not complete");
  }
  check_rows(x, "x", impl.config);
  if (x.num_rows != c.routed->send.num_tokens) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("x.num_rows is {}, expected {} as in the cached dispatch", x.num_rows,
                            c.routed->send.num_tokens));
  }
  h.round = {};
  h.layer.active = false;
  check_payloads(in, c.routed->options, impl.config);
  check_same_payloads(in, c);
  check_out(in, c.routed->options);
  const Status status = impl.engine->start_cached_dispatch(in, c, h);
  if (status.ok()) impl.adopt(h);
  return status;
}

Status Communicator::start_combine(Handle& handle, const CombineArgs& args) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "start_combine");
  HandleState& h = *handle.state_;
  impl.check_ours(h);
  if (!h.leased || h.kind != OpKind::dispatch) {
    throw Error(ErrorCode::misuse,
                fmt::format("the handle holds no lease: its {} of epoch {} {}, expected a dispatch "
                            "that was neither combined nor released",
                            name(h.kind), h.epoch,
                            h.leased ? "is under way" : "has ended, or was released"));
  }
  if (const Status status = Impl::state_of(h); status.code == Code::not_ready) return status;
  check_combine(args, h, impl.config);
  h.publishes = args.by_expert;
  return impl.engine->start_combine(h, args);
}

Status Communicator::poll_expert(const Handle& handle, int expert) const {
  const Impl& impl = open();
  const HandleState& h = *handle.state_;
  impl.check_ours(h);
  check_expert(expert, impl.config.experts.num_local(impl.rank));
  if (!h.leased || h.kind != OpKind::dispatch || !h.routed->options.by_expert) {
    throw Error(
        ErrorCode::misuse,
        "poll_expert: the handle's latest operation is no dispatch with by_expert, or it was "
        "released");
  }
  // acquires: the expert's rows; a lane copied them.
  if (h.experts.load_acquire(static_cast<std::size_t>(expert))) return {};
  return Impl::state_of(h);
}

Status Communicator::wait_expert(const Handle& handle, int expert) {
  return wait_expert(handle, expert, open().deadline());
}

Status Communicator::wait_expert(const Handle& handle, int expert,
                                 std::chrono::steady_clock::time_point deadline) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "wait_expert");
  const Status status = impl.insist([&] { return poll_expert(handle, expert); }, deadline);
  return status.code == Code::timeout ? impl.awaited(*handle.state_) : status;
}

Status Communicator::publish(Handle& handle, int expert) {
  const Impl& impl = open();
  HandleState& h = *handle.state_;
  impl.check_ours(h);
  check_expert(expert, impl.config.experts.num_local(impl.rank));
  if (h.kind != OpKind::combine || !h.publishes) {
    throw Error(ErrorCode::misuse,
                "publish: the handle's latest operation is no combine with by_expert");
  }
  const Status status = Impl::state_of(h);
  if (status.code != Code::not_ready && !status.ok() && status.code != Code::peer_lost) {
    return status;
  }
  if (status.code != Code::not_ready) {
    throw Error(ErrorCode::misuse, "publish: the combine is complete");
  }
  if (!impl.engine->publish_expert(h, expert)) {
    throw Error(ErrorCode::misuse, fmt::format("publish: expert {} was published before", expert));
  }
  return {};
}

Status Communicator::dispatch(const Input& in, const Routing& routing,
                              const DispatchOptions& options, Handle& handle) {
  return dispatch_round(in, routing, options, handle, {});
}

Status Communicator::dispatch_round(const Input& in, const Routing& routing,
                                    const DispatchOptions& options, Handle& handle,
                                    const LayerRound& round) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "dispatch");
  const auto until = impl.deadline();
  const Status started =
      impl.insist([&] { return start_round(in, routing, options, handle, round); }, until);
  // Not even begun: the handle has nothing to wait for, and an earlier operation's result is not
  // it.
  if (started.code == Code::timeout && !handle.holds_lease()) handle.state_->kind = OpKind::none;
  return impl.complete(started, *handle.state_, until);
}

Status Communicator::dispatch(const Input& in, const Handle& cached, Handle& handle) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "dispatch");
  const auto until = impl.deadline();
  return impl.complete(impl.insist([&] { return start_dispatch(in, cached, handle); }, until),
                       *handle.state_, until);
}

Status Communicator::combine(Handle& handle, const CombineArgs& args) {
  if (args.by_expert) {
    throw Error(
        ErrorCode::invalid_argument,
        "by_expert is set, expected only with start_combine(): combine() waits for publish()");
  }
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "combine");
  const auto until = impl.deadline();
  HandleState& h = *handle.state_;
  impl.check_ours(h);
  Status dispatched;  // a dispatch that is still pending is waited for, and its loss reported
  if (h.kind == OpKind::dispatch && Impl::state_of(h).code == Code::not_ready) {
    dispatched = impl.finish(h, until);
    if (!dispatched.ok() && dispatched.code != Code::peer_lost) return dispatched;
  }
  const Status started = start_combine(handle, args);
  if (!started.ok()) return started;
  const Status combined = impl.finish(h, until);
  return combined.ok() ? dispatched : combined;
}

int Communicator::step(int lane, int lanes) {
  Impl& impl = open();
  if (lanes < 1 || lanes > kMaxLanes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("lanes is {}, expected 1..{}", lanes, kMaxLanes));
  }
  if (lane < 0 || lane >= lanes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("lane is {}, expected 0..lanes - 1 = {}", lane, lanes - 1));
  }
  const int done = impl.engine->step(lane, lanes);
  if (lane == 0) impl.look_now_and_then(done);
  return done;
}

void Communicator::set_lanes(int lanes, const Roles& roles, SendOrder order) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "set_lanes");
  check_roles(lanes, roles, order);
  impl.refuse_pending("set_lanes");
  impl.engine->set_lanes(lanes, roles, order);
}

void Communicator::set_tracer(Tracer* tracer) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "set_tracer");
  impl.refuse_pending("set_tracer");
  impl.engine->set_tracer(tracer);
}

Status Communicator::poll(const Handle& handle) const {
  open().check_ours(*handle.state_);
  if (handle.state_->kind == OpKind::none) {
    throw Error(ErrorCode::misuse, "the handle has no operation");
  }
  return Impl::state_of(*handle.state_);
}

Status Communicator::wait(Handle& handle) { return wait(handle, open().deadline()); }

Status Communicator::wait(Handle& handle, Clock::time_point deadline) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "wait");
  const HandleState& h = *handle.state_;
  impl.check_ours(h);
  if (h.kind == OpKind::none) throw Error(ErrorCode::misuse, "the handle has no operation");
  return impl.finish(h, deadline);
}

void Communicator::release(Handle& handle) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "release");
  HandleState& h = *handle.state_;
  h.layer.active = false;
  if (!h.leased) return;
  impl.check_ours(h);
  impl.engine->release(h);
}

Status Communicator::input(std::int64_t num_tokens, std::int64_t hidden, DType dtype, Rows& x) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "input");
  check_rows(ConstRows(&impl, num_tokens, hidden, dtype), "input", impl.config);
  if (num_tokens > impl.config.max_tokens) {
    return impl.too_many_tokens(ConstRows(nullptr, num_tokens, hidden, dtype));
  }
  return impl.engine->input(num_tokens, hidden, dtype, x);
}

void Communicator::close() {
  if (impl_ == nullptr || impl_->closed || impl_->generation != fork_generation()) return;
  impl_->closed = true;
  if (impl_->engine != nullptr) impl_->engine->close();
}

}  // namespace ubep
