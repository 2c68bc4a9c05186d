// Layers of more tokens than max_tokens: rounds of dispatch, experts and combine.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "api/checks.hpp"
#include "engine/handle_state.hpp"
#include "ubep/communicator.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

// Tokens [first, first + count) of what a layer was given.
struct Slice {
  const Input& in;
  const Routing& routing;
  std::int64_t first;
  std::int64_t count;

  ConstRows x() const {
    const ConstRows& x = in.x;
    return {count == 0 ? x.data : x.row(first), count, x.hidden, x.dtype, x.stride_bytes};
  }
  std::vector<Payload> payloads() const {
    std::vector<Payload> parts(in.payloads.begin(), in.payloads.end());
    for (Payload& part : parts) {
      const std::int64_t stride = part.stride_bytes != 0 ? part.stride_bytes : part.bytes;
      if (count != 0) part.data = static_cast<const std::byte*>(part.data) + first * stride;
    }
    return parts;
  }
  Routing choices() const {
    const auto topk = static_cast<std::size_t>(routing.topk);
    const auto at = static_cast<std::size_t>(first) * topk;
    const auto size = static_cast<std::size_t>(count) * topk;
    const auto tokens = static_cast<std::size_t>(count);
    return {
        routing.topk_idx.subspan(at, size), routing.topk_weights.subspan(at, size), routing.topk,
        routing.active.empty() ? routing.active
                               : routing.active.subspan(static_cast<std::size_t>(first), tokens)};
  }
  Rows rows_of(const Rows& out) const {
    return {count == 0 ? out.data : out.row(first), count, out.hidden, out.dtype, out.stride_bytes};
  }
};

// What a layer goes on after.
bool is_partial(const Status& status) {
  return status.code == Code::peer_lost || status.code == Code::no_capacity;
}

// All of it, before anything starts: what is refused later leaves peers waiting.
void check_layer(const Input& in, const Routing& routing, const DispatchOptions& options,
                 const Layer& layer, const GroupConfig& config) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::invalid_argument, text);
  };
  if (!layer.experts) refuse("layer.experts is empty, expected a function");
  check_rows(in.x, "x", config);
  check_payloads(in, options, config);
  if (in.out.data != nullptr) refuse("out is set, expected none in a layer of rounds");
  check_routing(routing, in.x.num_rows, config);
  check_rows(layer.out, "layer.out", config);
  const Rows& out = layer.out;
  if (out.num_rows != in.x.num_rows) {
    refuse(fmt::format("layer.out.num_rows is {}, expected {} as x", out.num_rows, in.x.num_rows));
  }
  if (in.x.dtype == DType::u8) refuse("x.dtype is u8, expected bf16, fp16 or fp32 in a layer");
  if (out.dtype != in.x.dtype || out.hidden != in.x.hidden) {
    refuse(fmt::format("layer.out is {} of hidden {}, expected {} of {} as x", name(out.dtype),
                       out.hidden, name(in.x.dtype), in.x.hidden));
  }
}

// A handle whose lease is no layer's, or whose layer was given other tensors.
void check_resumed(const HandleState& h, const HandleState::Layer& wanted) {
  if (!h.layer.active && !h.leased) return;
  if (!h.layer.active) {
    throw Error(ErrorCode::misuse, "the handle holds a lease: combine or release it first");
  }
  if (h.layer.x == wanted.x && h.layer.out == wanted.out && h.layer.tokens == wanted.tokens) return;
  throw Error(ErrorCode::misuse,
              "the handle has a layer that is not finished, of another x or out: release it first");
}

}  // namespace

Status Communicator::run_layer(const Input& in, const Routing& routing,
                               const DispatchOptions& options, const Layer& layer, Handle& handle) {
  const GroupConfig& config = this->config();
  check_layer(in, routing, options, layer, config);
  HandleState& h = *handle.state_;
  HandleState::Layer& at = h.layer;
  HandleState::Layer begun;
  begun.active = true;
  begun.x = in.x.data;
  begun.out = layer.out.data;
  begun.tokens = in.x.num_rows;
  check_resumed(h, begun);
  if (!at.active) at = begun;
  const auto keep = [&at](const Status& status) {
    if (at.status.ok()) at.status = status;
  };
  for (bool more = true; more;) {
    // Without room for any, dispatch says so.
    const std::int64_t left = in.x.num_rows - at.done;
    const std::int64_t count =
        config.max_tokens == 0 ? left : std::min<std::int64_t>(left, config.max_tokens);
    const Slice slice{in, routing, at.done, count};
    Status status;
    if (!at.combining) {
      const std::vector<Payload> payloads = slice.payloads();
      status = h.leased ? wait(handle)
                        : dispatch_round({slice.x(), payloads}, slice.choices(), options, handle,
                                         {at.rounds + 1, count < left});
      if (!h.leased || (!status.ok() && !is_partial(status))) return end_layer(handle, status);
      keep(status);
      layer.experts(handle);
      status = start_combine(handle, {.out = slice.rows_of(layer.out)});
      if (!status.ok()) return end_layer(handle, status);
      at.combining = true;
    }
    status = wait(handle);
    if (!status.ok() && !is_partial(status)) return end_layer(handle, status);
    at.combining = false;
    keep(status);
    const auto valid = handle.valid_tokens();
    at.valid.insert(at.valid.end(), valid.begin(), valid.end());
    at.done += count;
    ++at.rounds;
    more = h.any_more;
  }
  at.active = false;
  h.valid = at.valid;
  return at.status;
}

// A layer goes on after what can be tried again, unless nothing of it has started.
Status Communicator::end_layer(Handle& handle, const Status& status) {
  HandleState& h = *handle.state_;
  const bool started = h.leased || h.layer.rounds != 0;
  const bool again = status.code == Code::timeout || status.code == Code::slot_busy;
  h.layer.active = again && started;
  return status;
}

}  // namespace ubep
