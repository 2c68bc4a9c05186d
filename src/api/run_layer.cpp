// Layers of more tokens than max_tokens: rounds of dispatch, experts and combine.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

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
    return {routing.topk_idx.subspan(at, size), routing.topk_weights.subspan(at, size),
            routing.topk};
  }
  Rows rows_of(const Rows& out) const {
    return {count == 0 ? out.data : out.row(first), count, out.hidden, out.dtype, out.stride_bytes};
  }
};

// What a layer goes on after.
bool is_partial(const Status& status) {
  return status.code == Code::peer_lost || status.code == Code::no_capacity;
}

void check_layer(const Input& in, const Routing& routing, const Layer& layer) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::invalid_argument, text);
  };
  if (!layer.experts) refuse("layer.experts is empty, expected a function");
  if (layer.out.num_rows != in.x.num_rows) {
    refuse(fmt::format("layer.out.num_rows is {}, expected {} as x", layer.out.num_rows,
                       in.x.num_rows));
  }
  if (routing.topk < 1)
    refuse(fmt::format("routing.topk is {}, expected at least 1", routing.topk));
  const auto expected = static_cast<std::size_t>(in.x.num_rows * routing.topk);
  if (routing.topk_idx.size() != expected || routing.topk_weights.size() != expected) {
    refuse(fmt::format("routing has {} experts and {} weights, expected {} of each",
                       routing.topk_idx.size(), routing.topk_weights.size(), expected));
  }
}

}  // namespace

Status Communicator::run_layer(const Input& in, const Routing& routing,
                               const DispatchOptions& options, const Layer& layer, Handle& handle) {
  check_layer(in, routing, layer);
  HandleState& h = *handle.state_;
  HandleState::Layer& at = h.layer;
  if (!at.active) {
    at = {};
    at.active = true;
  }
  const auto keep = [&at](const Status& status) {
    if (at.status.ok()) at.status = status;
  };
  for (bool more = true; more;) {
    // Without room for any, dispatch says so.
    const std::int64_t left = in.x.num_rows - at.done;
    const std::int64_t count =
        max_tokens() == 0 ? left : std::min<std::int64_t>(left, max_tokens());
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

// Only what a timeout left can be gone on with.
Status Communicator::end_layer(Handle& handle, const Status& status) {
  handle.state_->layer.active = status.code == Code::timeout;
  return status;
}

}  // namespace ubep
