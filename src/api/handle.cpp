#include "ubep/handle.hpp"

#include <utility>

#include "api/fork_guard.hpp"
#include "engine/engine.hpp"
#include "engine/handle_state.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

void end_lease(HandleState* h) {
  if (!h->leased || h->generation != fork_generation()) return;
  if (const auto engine = h->engine.lock()) engine->release(*h);
}

void check_received(const HandleState& h) {
  if (h.leased && h.generation != fork_generation()) {
    throw Error(ErrorCode::misuse, "this handle belongs to the parent of a fork");
  }
  const bool alive = h.leased && !h.engine.expired();
  if (alive && h.kind == OpKind::combine && h.publishes) return;  // experts are still at work
  const bool dispatched = alive && h.kind == OpKind::dispatch;
  // acquires: the views; written by finish(), or before the first expert's rows were copied.
  const bool complete = h.state.load_acquire() == HandleState::complete;
  if (dispatched && !complete && h.shown.load_acquire() != 0) return;  // acquires: likewise
  if (!dispatched || !complete) {
    throw Error(ErrorCode::misuse,
                "the handle holds no received rows: its dispatch is not "
                "complete, or its lease has ended");
  }
  const Code code = h.status.code;
  if (code != Code::ok && code != Code::peer_lost && code != Code::no_capacity) {
    throw Error(ErrorCode::misuse, "the handle holds no received rows: " + h.status.message());
  }
}

}  // namespace

Handle::Handle() : state_(std::make_unique<HandleState>()) {}
Handle::~Handle() { end_lease(state_.get()); }
Handle::Handle(Handle&& other) noexcept
    : state_(std::exchange(other.state_, std::make_unique<HandleState>())) {}
Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    end_lease(state_.get());
    state_ = std::exchange(other.state_, std::make_unique<HandleState>());
  }
  return *this;
}

const Received& Handle::received() const {
  check_received(*state_);
  return state_->received;
}

std::span<const float> Handle::row_weights() {
  HandleState& h = *state_;
  check_received(h);
  if (!is_by_expert(h.received.layout)) {
    throw Error(ErrorCode::misuse, "row_weights: rows of rank_major have Received::topk_weights");
  }
  list_row_weights(h.routed->receive, h.routed->options.expert_capacity, h.row_weights);
  return h.row_weights;
}

std::span<const std::int32_t> Handle::row_choices() {
  HandleState& h = *state_;
  check_received(h);
  if (!h.routed->shape.row_per_choice()) {
    throw Error(ErrorCode::misuse, "row_choices: a row of rank_major has several, see topk_idx");
  }
  list_row_choices(h.routed->receive, h.routed->options.expert_capacity, h.row_choices);
  return h.row_choices;
}

Rows Handle::expert_output() {
  check_received(*state_);
  return state_->output;
}

std::span<const std::uint8_t> Handle::valid_tokens() const {
  const HandleState& h = *state_;
  // acquires: the bitmap; written by reduce_tokens() on any lane.
  if (h.kind != OpKind::combine || h.state.load_acquire() != HandleState::complete) {
    throw Error(ErrorCode::misuse, "valid_tokens: the handle's combine is not complete");
  }
  return h.valid;
}

OperationStats Handle::stats() const { return state_->stats; }

bool Handle::holds_lease() const { return state_->leased && !state_->engine.expired(); }
std::uint64_t Handle::epoch() const { return state_->epoch; }

}  // namespace ubep
