// Rows to push, cut into one slice for each lane that sends (docs/adr/0014-schedule.md): which lane
// puts which rows, and in what order. A tile of all owners is a slice.
#pragma once

#include "engine/engine_impl.hpp"

namespace ubep {

// One lane sends owner by owner. So does everybody where a batch of rows has one checksum.
template <Fabric F>
bool EngineImpl<F>::slices(const Routed& r) const {
  return lanes_ > 1 && !(decodes(r) && protocol_.has_checksums());
}

// bsp is what has no schedule.
template <Fabric F>
bool EngineImpl<F>::by_token(const Routed& r) const {
  return send_order_ == SendOrder::by_token || r.options.path == Path::bsp;
}

// For the owners in op.targets.
template <Fabric F>
void EngineImpl<F>::add_slices(Op& op) {
  const Routed& routed = *op.handle->routed;
  if (op.targets.empty()) return;
  op.targets.for_each([&](int owner) {
    const auto i = static_cast<std::size_t>(owner);
    // publishes: nothing; the tiles below do.
    op.left[i].store_release(routed.outgoing[i].num_rows());
  });
  auto rows = static_cast<std::uint32_t>(routed.send.refs.size());
  if (!by_token(routed)) {
    const bool by_expert = is_by_expert(routed.shape.layout);
    count_targets(op, by_expert);
    fill_schedule(op, by_expert);
    rows = op.schedule.num_rows();
  }
  const int lanes = routed.options.path == Path::bsp ? lanes_ : std::max(roles_.send, 1);
  op.send.add(kAllOwners, rows, static_cast<std::uint32_t>(lanes));
}

// Rows of a dispatch for each expert, or rank, that is a target.
template <Fabric F>
void EngineImpl<F>::count_targets(Op& op, bool by_expert) {
  const Routed& routed = *op.handle->routed;
  op.rows_to.assign(routed.send.group_rows.begin(), routed.send.group_rows.end());
  for (int r = 0; r < config_.size; ++r) {
    if (op.targets.contains(r)) continue;
    const auto i = static_cast<std::size_t>(r);
    const auto first = static_cast<std::ptrdiff_t>(by_expert ? config_.experts.first[i] : r);
    const auto end = static_cast<std::ptrdiff_t>(by_expert ? config_.experts.first[i + 1] : r + 1);
    std::fill(op.rows_to.begin() + first, op.rows_to.begin() + end, 0);
  }
}

// From op.rows_to. The order is that of the last time, where lanes and destinations are.
template <Fabric F>
void EngineImpl<F>::fill_schedule(Op& op, bool by_expert) {
  const auto lanes = static_cast<std::uint32_t>(std::max(roles_.send, 1));
  if (op.schedule.order.empty() || op.schedule.lanes != lanes || op.is_by_expert != by_expert) {
    op.is_by_expert = by_expert;
    std::vector<std::uint16_t> tiers = fabric_.facts().tiers;
    tiers.resize(static_cast<std::size_t>(config_.size));  // none are known: all alike
    Destinations to;
    make_destinations(config_.experts, tiers, {.self = rank_, .by_expert = by_expert}, to);
    make_order(to, {.lanes = static_cast<int>(lanes)}, op.schedule);
  }
  count_rows(op.rows_to, op.schedule);
}

// Outputs that go back, by the ranks that they go to.
template <Fabric F>
void EngineImpl<F>::add_output_slices(Op& op) {
  const HandleState& h = *op.handle;
  op.rows_to.clear();
  for (int q = 0; q < config_.size; ++q) {
    const bool goes = q != rank_ || h.routed->options.weighting == Weighting::owner;
    op.rows_to.push_back(goes ? h.routed->receive.sources[static_cast<std::size_t>(q)].num_rows()
                              : 0);
  }
  fill_schedule(op, false);
  op.send.add(kAllOwners, op.schedule.num_rows(), op.schedule.lanes);
}

template <Fabric F>
int EngineImpl<F>::return_slice(Op& op, Tile& slice) {
  const std::uint32_t begin = slice.next;
  Tile run;
  RunCursor cursor({slice.next, slice.end, find_place(op.schedule.begin, slice.next)});
  while (!cursor.done()) {
    const RowRun to = cursor.next(op.schedule);
    run.peer = to.destination;
    run.next = to.first;
    run.end = to.first + to.count;
    (void)send_outputs(op, run);
  }
  slice.next = slice.end;
  return static_cast<int>(slice.end - begin);
}

template <Fabric F>
int EngineImpl<F>::push_slice(Op& op, Tile& slice) {
  const Routed& routed = *op.handle->routed;
  const std::uint32_t begin = slice.next;
  Tile run;
  const auto push = [&](int owner, std::size_t group, std::uint32_t first, std::uint32_t rows) {
    run.peer = static_cast<std::uint32_t>(owner);
    run.next = routed.outgoing[run.peer].group_begin[group] + first;
    run.end = run.next + rows;
    (void)push_rows(op, run);
  };
  if (by_token(routed)) {
    for (; slice.next < slice.end; ++slice.next) {
      const RowRef ref = routed.send.refs[slice.next];
      if (op.targets.contains(ref.rank)) push(ref.rank, ref.group, ref.index, 1);
    }
    return static_cast<int>(slice.end - begin);
  }
  RunCursor cursor({slice.next, slice.end, find_place(op.schedule.begin, slice.next)});
  while (!cursor.done()) {
    const RowRun to = cursor.next(op.schedule);
    if (!op.is_by_expert) {
      push(static_cast<int>(to.destination), 0, to.first, to.count);
      continue;
    }
    const int owner = config_.experts.owner_at(to.destination);
    const auto first = config_.experts.first[static_cast<std::size_t>(owner)];
    push(owner, to.destination - static_cast<std::size_t>(first), to.first, to.count);
  }
  slice.next = slice.end;
  return static_cast<int>(slice.end - begin);
}

}  // namespace ubep
