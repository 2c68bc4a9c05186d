// What each lane looks after first, and what it is told to have spent its time on.
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

#ifdef UBEP_NO_TRACE
inline constexpr bool kTraces = false;
#else
inline constexpr bool kTraces = true;
#endif

// Looks at the peers in a row that brought nothing, after which who counts helps with rows.
inline constexpr int kPatience = 16;

// By what this rank sends: others are taken to send as much here.
template <Fabric F>
void EngineImpl<F>::split_roles(const Op& op) {
  if (lanes_ == 1) return;
  if (wanted_roles_.count + wanted_roles_.send + wanted_roles_.receive != 0) {
    roles_ = wanted_roles_;
    return;
  }
  const HandleState& h = *op.handle;
  const auto rows = static_cast<std::int64_t>(h.routed->send.refs.size());
  const bool dispatching = op.line.kind == OpKind::dispatch;
  const bool copies = !dispatching || (h.routed->options.path != Path::read &&
                                       (!pushes(*h.routed) || h.routed->options.path == Path::bsp));
  roles_ = split_lanes(lanes_,
                       {.peers = config_.size - 1,
                        .sent = rows,
                        .received = copies ? rows : 0,
                        .row_bytes = static_cast<std::uint64_t>(h.x.row_bytes())},
                       fabric_.facts().lane);
}

// Between the phases of bsp: who is last in one lets all lanes into the next.
template <Fabric F>
void EngineImpl<F>::barrier() {
  if (lanes_ == 1) return;
  charge(control_lane_, Activity::count);
  fabric_.work({Work::Kind::barrier, 1});
  charge(control_lane_, Activity::barrier);
}

// Control part, after a look at the peers: what lanes without work wait for, and whether those that
// count should do nothing else.
template <Fabric F>
void EngineImpl<F>::note_awaited(int done) {
  if (lanes_ == 1 && tracer_ == nullptr) return;
  fruitless_ = done != 0 ? 0 : fruitless_ + 1;
  auto awaited = Activity::idle;
  auto held = Activity::idle;  // while other lanes have the last tiles
  bool counting = false;
  if (!order_.empty()) {
    const Op& op = *order_.front();
    const bool dispatching = op.line.kind == OpKind::dispatch;
    const bool push = pushes(*op.handle->routed);
    const bool needs_bases = dispatching && push && (!op.waiting.empty() || !op.unplaced.empty());
    awaited = needs_bases ? Activity::wait_base : Activity::wait_flag;
    if (op.handle->routed->options.path == Path::bsp) held = Activity::barrier;
    counting =
        dispatching && held != Activity::barrier && !op.waiting.empty() && fruitless_ < kPatience;
  }
  // publishes: nothing else; lanes may see it late.
  awaited_.store_release(static_cast<std::uint64_t>(awaited) |
                         static_cast<std::uint64_t>(held) << 8 |
                         static_cast<std::uint64_t>(counting) << 16);
}

template <Fabric F>
bool EngineImpl<F>::counts_only() const {
  // acquires: nothing else.
  return lanes_ > 1 && (awaited_.load_acquire() >> 16) != 0;
}

template <Fabric F>
void EngineImpl<F>::charge(int lane, Activity activity) const {
  if constexpr (kTraces) {
    if (tracer_ != nullptr) tracer_->charge(lane, activity);
  }
}

template <Fabric F>
void EngineImpl<F>::charge_wait(int lane) const {
  if constexpr (kTraces) {
    if (tracer_ == nullptr) return;
    bool held = false;
    bool blocked = false;
    for (const auto& op : ops_) {
      for (const TileBoard* board : {&op->send, &op->receive}) {
        held = held || !board->idle();
        blocked = blocked || board->has_free();
      }
    }
    const std::uint64_t word = awaited_.load_acquire();  // acquires: nothing else.
    const auto kind = static_cast<Activity>((held && !blocked ? word >> 8 : word) & 0xff);
    charge(lane, kind);
  }
}

}  // namespace ubep
