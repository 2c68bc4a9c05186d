// What a communicator holds, and how its calls wait.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/fork_guard.hpp"
#include "api/path_choice.hpp"
#include "api/turns.hpp"
#include "api/wait_notice.hpp"
#include "engine/engine.hpp"
#include "engine/waiter.hpp"
#include "fabric/shm/fabric.hpp"
#include "fabric/ucx/fabric.hpp"
#include "ubep/communicator.hpp"

namespace ubep {

struct [[gnu::visibility("hidden")]] Communicator::Impl {
  static constexpr int kIdleStepsPerClock = 16;
  static constexpr std::chrono::milliseconds kLookEvery{1};
  static constexpr std::uint64_t kDispatchesPerProbe = 1024;
  using Clock = std::chrono::steady_clock;

  Bootstrap bootstrap;
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
  std::unique_ptr<ShmFabric> fabric;  // of this host
  std::unique_ptr<UcxFabric> hosts;   // null: all ranks are meant to be on one
  std::shared_ptr<Engine> engine;
  WaitNotice notice;

  JoinRequest prepare(const CommunicatorOptions& options);
  void meet(const JoinRequest& request);
  void show_meeting();
  void make_engine();
  void introduce();
  const std::vector<int>& members() const {
    return hosts != nullptr ? hosts->members() : fabric->members();
  }
  std::vector<int> absent() const;  // ranks that take no part

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
    if (hosts == nullptr) return;
    facts.host_of.clear();
    facts.host_names.clear();
    for (int r = 0; r < config.size; ++r) {
      facts.host_of.push_back(hosts->host_number(r));
      facts.host_names.push_back(hosts->host_name(r));
    }
    facts.transport = hosts->transport();
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

  // What the oldest operation waits for; `otherwise` where none is pending, or lanes are at work on
  // it.
  Status oldest_wait(const Status& otherwise) const {
    const Status status = engine->waits_for(nullptr);
    return status.kind == OpKind::none ? otherwise : status;
  }

  // Of step(): a look for losses every millisecond of idling.
  void look_now_and_then(int done) {
    if (done > 0) notice.clear(*fabric);
    idle_steps = done > 0 ? 0 : idle_steps + 1;
    if (idle_steps % kIdleStepsPerClock != 0 || idle_steps == 0) return;
    const Clock::time_point now = Clock::now();
    if (now - last_look < kLookEvery) return;
    last_look = now;
    engine->look_for_losses();
    notice.show(*fabric, [this] { return oldest_wait({}); });
  }

  // Repeats `attempt` (which never waits) until it says something else than not_ready.
  template <class Attempt>
  Status insist(Attempt attempt, Clock::time_point until) {
    Waiter waiter(spin, until, crowd);
    bool noticed = notice.waits();  // a call that timed out has left it: this may be the same wait
    const auto goes_on = [&] {
      if (std::exchange(noticed, false)) notice.clear(*fabric);
    };
    for (;;) {
      Status status = attempt();
      if (status.code != Code::not_ready) {
        goes_on();
        return status;
      }
      if (engine->step(0, 1) > 0) {
        waiter.busy();
        goes_on();
        continue;
      }
      const Waiter::Advice advice = waiter.idle();
      if (advice == Waiter::Advice::again) continue;
      engine->look_for_losses();
      notice.show(*fabric, [&] { return status.peer < 0 ? oldest_wait(status) : status; });
      noticed = true;
      if (advice != Waiter::Advice::expired) continue;
      // However short the wait was, who is dead is told as dead.
      (void)engine->step(0, 1);
      status = attempt();
      if (status.code == Code::not_ready) {
        status.code = Code::timeout;
      } else {
        goes_on();
      }
      return status;
    }
  }

  // Ranks of other hosts read what this one has with its help. Not those who wait for what it will
  // not do any more.
  void help_others() {
    if (engine->pending() || engine->holds_lease()) return;
    Waiter waiter(spin, deadline(), crowd);
    while (!engine->is_dispensable()) {
      if (engine->step(0, 1) > 0) {
        waiter.busy();
        continue;
      }
      const Waiter::Advice advice = waiter.idle();
      if (advice == Waiter::Advice::expired) return;
      if (advice == Waiter::Advice::look_for_losses) engine->look_for_losses();
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
    const Status status = insist([&] { return state_of(h); }, until);
    return status.code == Code::timeout ? awaited(h) : status;
  }

  // A timeout that says whom the handle's operation waits for.
  Status awaited(const HandleState& h) const {
    Status status = engine->waits_for(&h);
    status.code = Code::timeout;
    return status;
  }

  Status state_of(const HandleState& h) const {
    // acquires: status, views and results of the completed operation; written by finish().
    if (h.state.load_acquire() == HandleState::complete) return h.status;
    Status status;
    status.code = Code::not_ready;
    status.kind = h.kind;
    status.rank = static_cast<std::int16_t>(rank);
    status.epoch = h.epoch;
    status.what = "it is pending: step() it, or wait()";
    return status;
  }
};

}  // namespace ubep
