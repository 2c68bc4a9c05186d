#include "support/rank_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "support/experts.hpp"

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr std::byte kPoison{0xff};  // a NaN in every type

// A matrix in the caller's memory: `shift` elements, then rows `gap` elements apart.
struct Tensor {
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;
  DType dtype = DType::bf16;
  int gap = 0;
  int shift = 0;

  Rows in(std::vector<std::byte>& memory) const {
    const std::int64_t width = static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t stride = (hidden + gap) * width;
    const std::int64_t last = num_rows == 0 ? 0 : (num_rows - 1) * stride + hidden * width;
    memory.assign(index(shift * width + last), kPoison);
    return {memory.data() + shift * width, num_rows, hidden, dtype, gap == 0 ? 0 : stride};
  }
};

}  // namespace

RankRun::RankRun(const Case& c, int rank, std::uint64_t delay_seed)
    : case_(c),
      rank_(rank),
      delays_(delay_seed != 0),
      random_(delay_seed, static_cast<std::uint64_t>(rank), c.seed),
      stages_(c.operations.size(), Stage::idle),
      buffers_(c.operations.size()),
      hashes_(c.operations.size()),
      latest_(index(c.num_handles), -1),
      handles_(index(c.num_handles)) {}

void RankRun::run(const Bootstrap& bootstrap) {
  CommunicatorOptions options = case_.options;
  options.store = case_.stores[index(rank_)];
  comm_.emplace(Communicator::create(bootstrap, options));
  if (case_.seed % 3 == 1) {  // whoever comes: one lane, or two or three
    comm_->set_lanes(3, {}, rank_ % 2 == 0 ? SendOrder::scheduled : SendOrder::by_token);
  }
  for (const Event& event : case_.events) {
    maybe_sleep();
    if (event.dispatch) {
      start_dispatch(event.operation);
    } else {
      end(event.operation);
    }
  }
  for (int handle = 0; handle < case_.num_handles; ++handle) finish_handle(handle);
  if (random_.one_in(2)) comm_.reset();
}

std::uint64_t RankRun::hash() const {
  Hash all;
  for (const Hash& hash : hashes_) all.add(hash.value());
  return all.value();
}

void RankRun::start_dispatch(int number) {
  const Operation& op = operation(number);
  finish_handle(op.handle);
  if (op.cached >= 0) finish_handle(op.cached);
  latest_[index(op.handle)] = number;
  Handle& handle = handle_of(number);
  const RankInput& in = input(number);
  const Routing routing{in.given_idx.empty() ? in.topk_idx : in.given_idx, in.topk_weights,
                        op.problem.topk, in.active};
  const DispatchOptions& options = local(number).options;
  const Input x = place_input(number);
  if (local(number).drive == Drive::call) {
    require(number, "dispatch",
            op.cached < 0 ? comm_->dispatch(x, routing, options, handle)
                          : comm_->dispatch(x, handles_[index(op.cached)], handle));
  } else {
    retry(number, "start_dispatch", [&] {
      return op.cached < 0 ? comm_->start_dispatch(x, routing, options, handle)
                           : comm_->start_dispatch(x, handles_[index(op.cached)], handle);
    });
  }
  stages_[index(number)] = Stage::dispatching;
  if (local(number).drive == Drive::call) finish_dispatch(number);
}

void RankRun::finish_dispatch(int number) {
  finish(number);
  stages_[index(number)] = Stage::received;
  const Operation& op = operation(number);
  Handle& handle = handle_of(number);
  const Received& received = handle.received();
  if (handle.epoch() != static_cast<std::uint64_t>(number) + 1) {
    fail(number, "epoch: got " + std::to_string(handle.epoch()));
  }
  std::string difference = compare_received(received, op.received[index(rank_)], op.problem,
                                            buffers_[index(number)].received);
  if (difference.empty() && local(number).options.mapped_view) {
    difference = compare_mapped(received, op.problem, rank_, case_.options.max_tokens);
  }
  if (difference.empty() && is_by_expert(received.layout)) {
    difference = compare_row_weights(handle.row_weights(), op.received[index(rank_)]);
  }
  if (difference.empty() && (is_by_expert(received.layout) || local(number).options.topk1)) {
    difference = compare_row_choices(handle.row_choices(), op.received[index(rank_)]);
  }
  if (!difference.empty()) fail(number, difference);
}

void RankRun::end(int number) {
  if (stages_[index(number)] == Stage::dispatching) finish_dispatch(number);
  Handle& handle = handle_of(number);
  if (!handle.holds_lease()) fail(number, "the lease is gone before the end");
  if (operation(number).release) {
    comm_->release(handle);
    if (handle.holds_lease()) fail(number, "release() left the lease");
    stages_[index(number)] = Stage::idle;
    return;
  }
  const Rows y = place_y(number);
  const Received received = handle.received();
  int first = number;  // whose options hold
  while (operation(first).origin >= 0) first = operation(first).origin;
  const bool in_place = local(first).options.in_place;
  const bool by_expert = local(number).by_expert && !(in_place && local(number).own_y);
  const bool late = by_expert && !in_place;
  if (late) {  // each expert's are written before they are published
    for (std::int64_t i = 0; i < y.num_rows; ++i) std::fill_n(y.row(i), y.row_bytes(), kPoison);
  } else {
    run_experts(received, operation(number).problem, rank_, local(number).options.weighting, y);
  }
  CombineArgs args{.out = place_out(number)};
  args.unweighted = operation(number).problem.unweighted;
  args.added = added_rows(operation(number).problem, rank_);
  if (local(number).own_y) args.y = y;
  args.by_expert = by_expert;
  if (local(number).drive == Drive::call && !args.by_expert) {
    require(number, "combine", comm_->combine(handle, args));
  } else {
    retry(number, "start_combine", [&] { return comm_->start_combine(handle, args); });
  }
  if (args.by_expert) publish_outputs(number, late ? &received : nullptr, y);
  stages_[index(number)] = Stage::combining;
  if (local(number).drive == Drive::call || !local(number).finish_late) finish_combine(number);
}

// In any order; computes them first if there is something to compute from.
void RankRun::publish_outputs(int number, const Received* received, const Rows& y) {
  std::vector<int> experts(index(comm_->num_local_experts()));
  std::iota(experts.begin(), experts.end(), 0);
  for (std::size_t i = experts.size(); i > 1; --i) {
    std::swap(experts[i - 1], experts[index(random_.below(static_cast<int>(i)))]);
  }
  for (const int expert : experts) {
    maybe_sleep();
    if (received != nullptr) {
      run_expert(*received, operation(number).problem, {rank_, expert}, y);
    }
    require(number, "publish", comm_->publish(handle_of(number), expert));
    if (random_.one_in(4)) (void)comm_->step();
  }
  if (local(number).drive == Drive::call) require(number, "wait", comm_->wait(handle_of(number)));
}

void RankRun::finish_combine(int number) {
  finish(number);
  stages_[index(number)] = Stage::idle;
  const Handle& handle = handle_of(number);
  if (handle.holds_lease()) fail(number, "combine left the lease");
  const auto valid = handle.valid_tokens();
  if (valid.size() != index(input(number).tokens) ||
      std::count(valid.begin(), valid.end(), std::uint8_t{1}) != std::ssize(valid)) {
    fail(number, "valid_tokens: not one 1 for each token");
  }
  const Rows& out = buffers_[index(number)].out_rows;
  const std::string difference = compare_out(out, operation(number).out[index(rank_)]);
  if (!difference.empty()) fail(number, difference);
  for (std::int64_t i = 0; i < out.num_rows; ++i) {
    hashes_[index(number)].add(out.dtype, out.row(i), index(out.hidden));
  }
  check_gaps(number);
  buffers_[index(number)] = {};
}

void RankRun::finish_handle(int handle) {
  const int number = latest_[index(handle)];
  if (number < 0) return;
  if (stages_[index(number)] == Stage::dispatching) finish_dispatch(number);
  if (stages_[index(number)] == Stage::combining) finish_combine(number);
}

// Completes the handle's latest operation.
void RankRun::finish(int number) {
  Handle& handle = handle_of(number);
  switch (local(number).drive) {
    case Drive::call:
      require(number, "poll", comm_->poll(handle));
      break;
    case Drive::wait:
      require(number, "wait", comm_->wait(handle));
      break;
    case Drive::poll:
      retry(number, "poll", [&] { return comm_->poll(handle); });
      break;
    case Drive::lanes:
      require(number, "step", step_lanes(handle, local(number).lanes));
      break;
  }
}

ConstRows RankRun::place_x(int number) {
  const Operation& op = operation(number);
  const RankInput& in = input(number);
  Rows x;
  if (local(number).input) {
    retry(number, "input",
          [&] { return comm_->input(in.tokens, op.problem.hidden, op.problem.dtype, x); });
    if (x.num_rows != in.tokens || x.hidden != op.problem.hidden || x.dtype != op.problem.dtype) {
      fail(number, "input(): another shape than asked for");
    }
  } else {
    const Tensor tensor{in.tokens, op.problem.hidden, op.problem.dtype, local(number).x_gap,
                        local(number).shift};
    x = tensor.in(buffers_[index(number)].x);
  }
  const std::size_t row_bytes = index(x.row_bytes());
  for (std::int64_t i = 0; i < in.tokens; ++i) {
    std::memcpy(x.row(i), in.x.data() + index(i) * row_bytes, row_bytes);
  }
  return x;
}

Input RankRun::place_input(int number) {
  const Problem& problem = operation(number).problem;
  std::vector<Payload>& payloads = buffers_[index(number)].payloads;
  payloads.clear();
  for (std::size_t i = 0; i < problem.payloads.size(); ++i) {
    const std::byte* data = input(number).payloads[i].data();
    // A vector without elements may have no address.
    payloads.push_back({i == 0 ? "first" : "second", data, problem.payloads[i]});
  }
  Input in{place_x(number), payloads};
  const LocalChoice& choice = local(number);
  if (choice.tail >= 0) {
    const std::int64_t rows = operation(number).received[index(rank_)].num_rows + choice.tail;
    const Tensor tensor{rows, problem.hidden, problem.dtype, choice.y_gap, choice.shift};
    in.out = buffers_[index(number)].received = tensor.in(buffers_[index(number)].rows);
  }
  return in;
}

Rows RankRun::place_out(int number) {
  const LocalChoice& choice = local(number);
  const Problem& problem = operation(number).problem;
  const Tensor tensor{input(number).tokens, problem.output_hidden(), problem.output_dtype(),
                      choice.out_gap, choice.shift};
  Buffers& buffers = buffers_[index(number)];
  buffers.out_rows = tensor.in(buffers.out);
  return buffers.out_rows;
}

Rows RankRun::place_y(int number) {
  const Received& received = handle_of(number).received();
  const LocalChoice& choice = local(number);
  const bool owner = choice.options.weighting == Weighting::owner;
  const std::int64_t num_rows = owner ? std::ssize(received.expert_rows) : received.num_rows;
  if (choice.own_y) {
    const Rows& in = buffers_[index(number)].received;
    const bool whole = in.data != nullptr && !owner && random_.one_in(2);
    const Problem& problem = operation(number).problem;
    const Tensor tensor{whole ? in.num_rows : num_rows, problem.output_hidden(),
                        problem.output_dtype(), choice.y_gap, 0};
    return tensor.in(buffers_[index(number)].y);
  }
  const Rows y = handle_of(number).expert_output();
  if (y.num_rows != num_rows || y.hidden != received.hidden || y.dtype != received.dtype) {
    fail(number, "expert_output(): another shape than [" + std::to_string(num_rows) + ", " +
                     std::to_string(received.hidden) + "]");
  }
  return y;
}

// Nothing but the rows of `out` was written. Ends the use of the buffer.
void RankRun::check_gaps(int number) {
  Buffers& buffers = buffers_[index(number)];
  const Rows& out = buffers.out_rows;
  for (std::int64_t i = 0; i < out.num_rows; ++i) {
    std::fill_n(out.row(i), out.row_bytes(), kPoison);
  }
  if (std::count(buffers.out.begin(), buffers.out.end(), kPoison) != std::ssize(buffers.out)) {
    fail(number, "combine wrote between or before the rows of out");
  }
}

void RankRun::retry(int number, const char* what, const std::function<Status()>& call) {
  const auto deadline = std::chrono::steady_clock::now() + patience_;
  for (;;) {
    const Status status = call();
    if (status.code != Code::not_ready) return require(number, what, status);
    if (std::chrono::steady_clock::now() > deadline) {
      fail(number, std::string(what) + " stays not_ready: " + status.message());
    }
    if (comm_->step() == 0) std::this_thread::yield();
  }
}

void RankRun::require(int number, const char* what, const Status& status) const {
  if (!status.ok()) fail(number, std::string(what) + ": " + status.message());
}

void RankRun::fail(int number, const std::string& what) const {
  throw std::runtime_error("rank " + std::to_string(rank_) + ", operation " +
                           std::to_string(number) + ": " + what);
}

Status RankRun::step_lanes(const Handle& handle, int lanes) {
  const auto deadline = std::chrono::steady_clock::now() + patience_;
  const auto work = [&](int lane) {
    while (comm_->poll(handle).code == Code::not_ready &&
           std::chrono::steady_clock::now() < deadline) {
      if (comm_->step(lane, lanes) == 0) std::this_thread::yield();
    }
  };
  std::vector<std::thread> threads;
  for (int lane = 1; lane < lanes; ++lane) threads.emplace_back(work, lane);
  work(0);
  for (std::thread& thread : threads) thread.join();
  return comm_->poll(handle);
}

void RankRun::maybe_sleep() {
  if (!delays_ || !random_.one_in(3)) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random_.below(400)));
}

const Operation& RankRun::operation(int number) const { return case_.operations[index(number)]; }
const LocalChoice& RankRun::local(int number) const {
  return operation(number).local[index(rank_)];
}
const RankInput& RankRun::input(int number) const {
  return operation(number).problem.ranks[index(rank_)];
}
Handle& RankRun::handle_of(int number) { return handles_[index(operation(number).handle)]; }

}  // namespace ubep::test
