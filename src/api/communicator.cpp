#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>

#include "api/checks.hpp"
#include "api/communicator_impl.hpp"
#include "api/set_up.hpp"
#include "base/system_limits.hpp"
#include "protocol/segment_layout.hpp"

namespace ubep {
namespace {

bool spans_hosts(const Bootstrap& bootstrap) { return !bootstrap.address.empty(); }

TcpPlace place_of(const Bootstrap& bootstrap) { return {bootstrap.address, bootstrap.port}; }

void decline(const Bootstrap& bootstrap, const char* why) {
  const JoinRequest request = request_of(bootstrap);
  spans_hosts(bootstrap) ? UcxFabric::decline(request, place_of(bootstrap), why)
                         : ShmFabric::decline(request, bootstrap.threads.get(), why);
}

}  // namespace

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
JoinRequest Communicator::Impl::prepare(const CommunicatorOptions& options) {
  rank = bootstrap.rank;
  config = make_config(options, bootstrap.size);
  if (spans_hosts(bootstrap)) let_span_hosts(options, config);
  timeout = timeout_of(options);
  memory = plan_of(config, rank);
  crowd.ranks_per_cpu = ranks_per_cpu(bootstrap.size);
  spin = crowd.ranks_per_cpu == 1;
  store = options.store;
  check_memory(config, rank);
  return request_of(bootstrap, config);
}

// Joins the others, then takes their fabric in place of the one at hand.
void Communicator::Impl::meet(const JoinRequest& request) {
  if (fabric != nullptr) show_meeting();
  UcxFabric::Joined met;
  if (spans_hosts(bootstrap)) {
    met = UcxFabric::join(request, place_of(bootstrap));
  } else {
    met.local = ShmFabric::join(request, bootstrap.threads.get());
  }
  if (engine != nullptr) engine->close();
  engine.reset();
  hosts = std::move(met.all);
  fabric = std::move(met.local);
  facts.probes = fabric->facts().flag_one_way_ns > 0 ? 1 : 0;
  take_facts();
  make_engine();
  introduce();
}

// Of update_membership(), for `ubep ps`.
void Communicator::Impl::show_meeting() {
  notice.clear(*fabric);
  notice.show(*fabric,
              [this] {
                Status status;
                status.code = Code::not_ready;
                status.rank = static_cast<std::int16_t>(rank);
                status.what = "update_membership: not all are here";
                return status;
              },
              {});
}

void Communicator::Impl::make_engine() {
  try {
    const EngineOptions options{.config = config, .store = facts.store, .absent = absent()};
    engine =
        hosts != nullptr ? make_ucx_engine(*hosts, options) : make_shm_engine(*fabric, options);
  } catch (...) {
    // The others may have begun.
    hosts != nullptr ? hosts->set_state(PeerState::failed) : fabric->set_state(PeerState::failed);
    closed = true;
    throw;
  }
}

void Communicator::Impl::introduce() {
  const SegmentLayout own(config, rank);
  const std::uint64_t slot_bytes = config.slots > 1 ? own.pub(1) - own.pub(0) : 0;
  Identity identity{.slots = static_cast<std::uint32_t>(config.slots),
                    .first_op = static_cast<std::uint32_t>(own.op(0)),
                    .first_word = static_cast<std::uint32_t>(own.pub(0)),
                    .slot_bytes = static_cast<std::uint32_t>(slot_bytes)};
  bootstrap.job.copy(identity.job, sizeof(identity.job) - 1);
  fabric->introduce(identity);
}

Communicator Communicator::create(const Bootstrap& bootstrap, const CommunicatorOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->bootstrap = check_bootstrap(bootstrap);
  check_job(bootstrap);
  try {
    JoinRequest request;
    try {
      request = impl->prepare(options);
    } catch (const std::exception& error) {
      decline(impl->bootstrap, error.what());
      throw;
    }
    impl->meet(request);
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
  (void)check_bootstrap(place);
  return plan_of(make_config(options, size), rank);
}

int Communicator::rank() const { return here().rank; }
int Communicator::size() const { return here().config.size; }
int Communicator::num_local_experts() const {
  const Impl& impl = here();
  return impl.config.experts.num_local(impl.rank);
}
const GroupConfig& Communicator::config() const { return open().config; }
CommunicatorFacts Communicator::facts() const {
  CommunicatorFacts facts = here().facts;
  if (here().hosts != nullptr) facts.host_bytes = here().hosts->bytes_between_hosts();
  return facts;
}
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
               .hosts = impl.config.returns,
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
  const Code code = impl.state_of(c).code;
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
  if (const Status status = impl.state_of(h); status.code == Code::not_ready) return status;
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
  return impl.state_of(h);
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
  const Status status = impl.state_of(h);
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
  if (h.kind == OpKind::dispatch && impl.state_of(h).code == Code::not_ready) {
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
  const Impl& impl = open();
  const HandleState& h = *handle.state_;
  impl.check_ours(h);
  if (h.kind == OpKind::none) throw Error(ErrorCode::misuse, "the handle has no operation");
  return impl.state_of(h);
}

Status Communicator::wait(Handle& handle) { return wait(handle, open().deadline()); }

Status Communicator::wait(Handle& handle, std::chrono::steady_clock::time_point deadline) {
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
  impl.notice.clear(*impl.fabric);
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
  if (impl_->hosts != nullptr && impl_->engine != nullptr) impl_->help_others();
  if (impl_->engine != nullptr) impl_->engine->close();
}

}  // namespace ubep
