#include "support/cases.hpp"

#include <algorithm>
#include <cstdio>

#include "support/numbers.hpp"

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<std::int32_t> random_map(int num_experts, int num_ranks, Random& random) {
  // Owners are drawn from some of the ranks: the others own nothing.
  const int owners = random.between(1, num_ranks);
  const int first = random.below(num_ranks);
  std::vector<std::int32_t> map;
  for (int e = 0; e < num_experts; ++e) map.push_back((first + random.below(owners)) % num_ranks);
  return map;
}

int random_hidden(Random& random) {
  switch (random.below(4)) {
    case 0:
      return random.between(1, 9);
    case 1:
      return 32 * random.between(1, 8);
    case 2:
      return 2 * random.between(1, 150) - 1;
    default:
      return random.between(1, 300);
  }
}

void choose_communicator(Case& c, const CaseLimits& limits, Random& random) {
  c.num_ranks = random.between(1, limits.max_ranks);
  if (random.one_in(16)) c.num_ranks = random.between(1, 2 * limits.max_ranks);
  CommunicatorOptions& options = c.options;
  options.num_experts = random.between(1, 40);
  if (random.one_in(2)) {
    options.expert_rank = random_map(options.num_experts, c.num_ranks, random);
  }
  options.max_tokens = random.pick<int>({1, 2, 3, 7, 16, 24, 33, 64});
  if (random.one_in(24)) options.max_tokens = 0;
  options.max_hidden = random_hidden(random);
  while (options.max_tokens * options.max_hidden > limits.max_elements) {
    options.max_tokens /= 2;
    options.max_hidden = random_hidden(random);
  }
  options.max_dtype = random.pick<DType>({DType::bf16, DType::fp16, DType::fp32});
  options.max_topk = random.between(1, 12);
  if (random.one_in(10)) options.max_topk = random.between(13, 64);
  options.slots = random.between(1, 4);
  options.push = !random.one_in(4);
  options.bsp = options.push && random.one_in(2);
  options.timeout = std::chrono::seconds(40);
}

void choose_shape(const CommunicatorOptions& options, Problem& problem, Random& random) {
  const auto largest_row = index(options.max_hidden) * size_of(options.max_dtype);
  problem.dtype = random.pick<DType>({DType::bf16, DType::fp16, DType::fp32});
  if (largest_row < size_of(problem.dtype)) problem.dtype = options.max_dtype;
  const int largest = static_cast<int>(largest_row / size_of(problem.dtype));
  problem.hidden = random.one_in(2) ? largest : random.between(1, largest);
  problem.topk = random.one_in(2) ? options.max_topk : random.between(1, options.max_topk);
  problem.layout = random.pick<Layout>(
      {Layout::rank_major, Layout::rank_major, Layout::expert_major, Layout::expert_padded});
  problem.function = static_cast<ExpertFunction>(random.below(3));
  if (problem.layout == Layout::rank_major) {
    problem.topk1 = random.one_in(4);
    problem.every_token = !problem.topk1 && random.one_in(6);
    problem.reduction = random.pick<Reduction>({Reduction::automatic, Reduction::per_rank});
    return;
  }
  if (problem.layout == Layout::expert_major) {
    problem.expert_alignment = random.pick<int>({1, 1, 2, 5, 8, 16, 128});
  }
  problem.reduction =
      random.pick<Reduction>({Reduction::automatic, Reduction::exact, Reduction::per_rank});
}

// What only changes how rows travel: never the bits.
DispatchOptions choose_options(const Operation& operation, bool push, Random& random) {
  const Problem& problem = operation.problem;
  DispatchOptions options{.layout = problem.layout,
                          .reduction = problem.reduction,
                          .topk1 = problem.topk1,
                          .expert_alignment = problem.expert_alignment,
                          .expert_capacity = problem.expert_capacity};
  const bool rank_major = problem.layout == Layout::rank_major;
  const bool read = rank_major && !problem.topk1 && random.one_in(2);
  if (operation.bsp || problem.every_token) {
    options.path = operation.bsp ? Path::bsp : Path::allgather;
    options.contiguous = rank_major && random.one_in(2);
  } else if (read) {
    // A mapped view does not go with a peer that pushes.
    options.mapped_view = !push && random.one_in(3);
    options.path = random.pick<Path>({Path::read, Path::read, Path::automatic});
  } else {
    options.path = random.pick<Path>({Path::pull, Path::automatic, Path::push});
    if (!push && options.path == Path::push) options.path = Path::pull;
    const bool pull = options.path != Path::automatic;
    options.in_place = pull && random.one_in(3);
    options.contiguous = pull && rank_major && random.one_in(2);
  }
  if (rank_major && !options.in_place && random.one_in(3)) options.weighting = Weighting::owner;
  return options;
}

LocalChoice choose_local(const Operation& operation, bool push, Random& random) {
  LocalChoice local;
  local.options = choose_options(operation, push, random);
  local.drive = static_cast<Drive>(random.below(4));
  local.lanes = random.between(2, 3);
  local.input = random.one_in(3);
  local.own_y = random.one_in(2);
  local.x_gap = random.one_in(3) ? random.between(1, 40) : 0;
  local.y_gap = random.one_in(3) ? random.between(1, 40) : 0;
  local.out_gap = random.one_in(3) ? random.between(1, 40) : 0;
  local.shift = random.one_in(3) ? random.between(1, 7) : 0;
  local.finish_late = random.one_in(3);
  return local;
}

// What rows that are encoded on their way, and outputs of another shape, do not go with.
void suit_records(Operation& operation) {
  const Problem& problem = operation.problem;
  for (LocalChoice& local : operation.local) {
    local.options.quant = problem.quant;
    if (!problem.is_plain()) local.input = local.options.in_place = false;
    if (problem.own_output) local.options.in_place = false;
    if (problem.own_output) local.own_y = true;
    const bool one_tensor = problem.layout != Layout::rank_major || local.options.contiguous;
    if (!problem.is_plain() || local.options.in_place || !one_tensor) local.tail = -1;
  }
}

// Drawn apart, too: rows in the caller's tensor, and one expert after the other.
void choose_serving(Operation& operation, LocalChoice& local, Random random) {
  local.tail = random.one_in(3) ? random.below(4) : -1;
  if (operation.problem.layout == Layout::rank_major) return;
  local.options.by_expert = random.one_in(3);
  local.by_expert = !operation.bsp && random.one_in(3);
}

// Tokens that take no part.
void choose_active(Case& c, Operation& operation, Random& random) {
  const bool repeats = operation.origin >= 0;
  if (!repeats && !random.one_in(5)) return;
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    RankInput& input = operation.problem.ranks[index(rank)];
    if (repeats) {
      input.topk_idx = c.operations[index(operation.origin)].problem.ranks[index(rank)].topk_idx;
      continue;
    }
    const auto topk = index(operation.problem.topk);
    input.given_idx = input.topk_idx;
    for (std::size_t i = 0; i < index(input.tokens); ++i) {
      input.active.push_back(random.one_in(3) ? 0 : 1);
      if (input.active.back() == 0) std::fill_n(&input.topk_idx[i * topk], topk, -1);
    }
  }
}

// Drawn apart, as protocols are: what travels, and what comes back.
void choose_records(Case& c, Operation& operation, Random& random) {
  Problem& problem = operation.problem;
  if (operation.origin >= 0) {  // a repeated routing repeats its form, too
    const Problem& origin = c.operations[index(operation.origin)].problem;
    problem.quant = origin.quant;
    problem.payloads = origin.payloads;
    problem.dtype = origin.dtype;
    problem.hidden = origin.hidden;
  } else if (random.one_in(3)) {
    const auto width = static_cast<int>(size_of(problem.dtype));
    if (random.one_in(4)) {  // encoded by the caller: the same bytes
      problem.dtype = DType::u8;
      problem.hidden *= width;
    } else if (!random.one_in(3)) {
      problem.quant = static_cast<Quant>(random.between(1, 5));
    }
    for (int n = random.below(3); n > 0; --n) problem.payloads.push_back(random.between(1, 40));
  }
  problem.own_output = problem.dtype == DType::u8 || random.one_in(5);
  const auto largest_row = c.options.max_hidden * static_cast<int>(size_of(c.options.max_dtype));
  problem.out_dtype = random.pick<DType>({DType::bf16, DType::fp16, DType::fp32});
  if (static_cast<int>(size_of(problem.out_dtype)) > largest_row) {
    problem.out_dtype = c.options.max_dtype;
  }
  problem.out_hidden =
      random.between(1, largest_row / static_cast<int>(size_of(problem.out_dtype)));
  problem.unweighted = random.one_in(5);
  problem.added = random.one_in(4) ? random.between(1, 2) : 0;
  int bytes = 0;
  for (const int payload : problem.payloads) bytes += (payload + 7) / 8 * 8;
  c.options.max_payload = std::max(c.options.max_payload, bytes);
  for (RankInput& input : problem.ranks) {
    input.added.clear();
    for (int i = 0; i < problem.added; ++i) {
      const std::size_t width = size_of(problem.output_dtype());
      std::vector<std::byte> data(index(input.tokens * problem.output_hidden()) * width);
      for (std::size_t at = 0; at < data.size(); at += width) {
        const float value = static_cast<float>(random.below(4001) - 2000) / 64;
        store_bits(problem.output_dtype(), round_to(problem.output_dtype(), value), &data[at]);
      }
      input.added.push_back(std::move(data));
    }
    input.payloads.clear();
    for (const int payload : problem.payloads) {
      std::vector<std::byte> data(index(input.tokens * payload));
      for (std::byte& byte : data) byte = static_cast<std::byte>(random.below(256));
      input.payloads.push_back(std::move(data));
    }
  }
  suit_records(operation);
}

// Every rank's own affairs; most often all ranks do the same thing in their own way. Options of a
// repeated routing are those of its origin.
void choose_locals(Case& c, int number, std::uint64_t seed) {
  Operation& operation = c.operations[index(number)];
  const auto stream = static_cast<std::uint64_t>(number);
  Random shared(seed, stream, 0);
  const bool push = c.options.push;
  const DispatchOptions options = choose_options(operation, push, shared);
  const bool same = !shared.one_in(4);
  operation.local.clear();
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    Random random(seed, stream, static_cast<std::uint64_t>(rank) + 1);
    LocalChoice local = choose_local(operation, push, random);
    if (same) local.options = options;
    choose_serving(operation, local, Random(seed, stream, 1000 + static_cast<std::uint64_t>(rank)));
    if (operation.origin >= 0) {
      local.options = c.operations[index(operation.origin)].local[index(rank)].options;
    }
    local.own_y = local.own_y && !local.options.in_place;
    operation.local.push_back(local);
  }
  suit_records(operation);
}

// expert_padded: room for the fullest expert, most often with some to spare.
void choose_capacity(CommunicatorOptions& options, Problem& problem, Random& random) {
  if (problem.layout != Layout::expert_padded) return;
  std::vector<int> rows(index(problem.num_experts));
  for (const RankInput& input : problem.ranks) {
    for (const std::int32_t id : input.topk_idx) {
      if (id >= 0) ++rows[index(id)];
    }
  }
  const int most = *std::max_element(rows.begin(), rows.end());
  problem.expert_capacity = std::max(1, most + random.below(3));
  options.expert_capacity = std::max(options.expert_capacity, problem.expert_capacity);
}

// A dispatch with the routing of an earlier one must be that one in everything but x.
void repeat_routing(const Operation& origin, Operation& operation, Random& random) {
  const ExpertFunction function = operation.problem.function;
  operation.problem = origin.problem;
  operation.problem.function = function;
  for (RankInput& input : operation.problem.ranks) {
    for (std::size_t i = 0; i + 1 < input.x.size(); i += 2) {
      if (random.one_in(2)) std::swap(input.x[i], input.x[i + 1]);
    }
  }
}

// Which handles hold leases, and whose routing each remembers, while the events are drawn.
struct Leases {
  std::vector<int> holder;  // [handles] operation whose lease it holds, -1 = none
  std::vector<int> latest;  // [handles] operation that used it last, -1 = none
  std::vector<int> open;    // operations in flight, oldest first

  explicit Leases(int handles) : holder(index(handles), -1), latest(index(handles), -1) {}

  std::vector<int> free_handles() const {
    std::vector<int> free;
    for (std::size_t i = 0; i < holder.size(); ++i) {
      if (holder[i] < 0) free.push_back(static_cast<int>(i));
    }
    return free;
  }
  std::vector<int> used_handles() const {
    std::vector<int> used;
    for (std::size_t i = 0; i < latest.size(); ++i) {
      if (latest[i] >= 0) used.push_back(static_cast<int>(i));
    }
    return used;
  }
  void start(int operation, int handle) {
    holder[index(handle)] = latest[index(handle)] = operation;
    open.push_back(operation);
  }
  void end(int operation, int handle) {
    holder[index(handle)] = -1;
    open.erase(std::find(open.begin(), open.end(), operation));
  }
};

void add_dispatch(Case& c, Leases& leases, Random& random) {
  const int number = static_cast<int>(c.operations.size());
  Operation operation;
  Problem& problem = operation.problem;
  problem.num_experts = c.options.num_experts;
  problem.expert_rank = c.options.expert_rank;
  problem.ranks.resize(index(c.num_ranks));
  choose_shape(c.options, problem, random);
  operation.handle = random.pick(leases.free_handles());
  const std::vector<int> used = leases.used_handles();
  if (!used.empty() && random.one_in(4)) {
    operation.cached = random.pick(used);
    operation.origin = leases.latest[index(operation.cached)];
    repeat_routing(c.operations[index(operation.origin)], operation, random);
    operation.bsp = c.operations[index(operation.origin)].bsp;
  } else {
    fill_inputs(problem, c.options.max_tokens, random);
    choose_capacity(c.options, problem, random);
    operation.bsp = c.options.bsp && problem.layout == Layout::expert_major && random.one_in(3);
  }
  operation.release = random.one_in(8);
  leases.start(number, operation.handle);
  c.operations.push_back(std::move(operation));
  choose_locals(c, number, c.seed);
  c.events.push_back({true, number});
}

// Dispatch e takes the slot of e - N, so that one must have ended; any open lease may end.
void draw_events(Case& c, int count, Random& random) {
  Leases leases(c.num_handles);
  const int slots = c.options.slots;
  while (static_cast<int>(c.operations.size()) < count || !leases.open.empty()) {
    const int next = static_cast<int>(c.operations.size());
    const bool slot_free =
        std::find(leases.open.begin(), leases.open.end(), next - slots) == leases.open.end();
    const bool can_start = next < count && slot_free;
    if (can_start && (leases.open.empty() || !random.one_in(3))) {
      add_dispatch(c, leases, random);
      continue;
    }
    const int ending = random.one_in(3) ? random.pick(leases.open) : leases.open.front();
    leases.end(ending, c.operations[index(ending)].handle);
    c.events.push_back({false, ending});
  }
}

void choose_stores(Case& c, Random& random) {
  const bool same = random.one_in(2);
  const std::vector<Store> kinds{Store::automatic, Store::near, Store::far};
  const Store store = random.pick(kinds);
  c.stores.clear();
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    c.stores.push_back(same ? store : random.pick(kinds));
  }
}

}  // namespace

Case make_case(std::uint64_t seed, const CaseLimits& limits) {
  Random random(seed);
  Case c;
  c.seed = seed;
  choose_communicator(c, limits, random);
  choose_stores(c, random);
  c.num_handles = c.options.slots + 2;
  const int low = std::min(limits.max_operations, 2 * c.options.slots + 2);
  draw_events(c, random.between(low, limits.max_operations), random);
  // Drawn apart: the rest of a seed's case is what it was before there were protocols.
  Random apart(seed, 41, 0);
  if (limits.draws_protocol && c.options.push && apart.one_in(2)) {
    c.options.protocol = static_cast<Protocol>(apart.between(1, 7));
    if (c.options.protocol == Protocol::checksum) c.options.checksum_rows = apart.below(5);
  }
  for (std::size_t i = 0; i < c.operations.size(); ++i) {
    Random records(seed, 43, i);
    choose_records(c, c.operations[i], records);
    Random tokens(seed, 47, i);
    choose_active(c, c.operations[i], tokens);
  }
  return c;
}

void spread_over_hosts(Case& c, const std::vector<int>& host_of, Random& random) {
  c.options.push = true;
  c.options.bsp = false;
  c.options.protocol = Protocol::automatic;
  c.options.checksum_rows = 0;
  c.options.max_topk = std::max(c.options.max_topk, host_of.back() + 1);  // for allgather
  for (Operation& op : c.operations) {
    Problem& problem = op.problem;
    op.bsp = false;
    problem.host_of = host_of;
    for (LocalChoice& local : op.local) local.by_expert = false;
    if (op.origin >= 0) {
      const Operation& origin = c.operations[index(op.origin)];
      problem.reduction = origin.problem.reduction;
      for (std::size_t r = 0; r < op.local.size(); ++r)
        op.local[r].options = origin.local[r].options;
      continue;
    }
    const bool relays = !problem.topk1 && !problem.every_token && !random.one_in(4);
    if (problem.layout == Layout::rank_major) {
      const bool by_host = relays || problem.every_token || random.one_in(2);
      problem.reduction = by_host ? Reduction::automatic : Reduction::per_rank;
    }
    for (LocalChoice& local : op.local) {
      local.options.by_expert = local.options.mapped_view = false;
      local.options.reduction = problem.reduction;
      if (problem.every_token) continue;
      local.options.path = relays ? random.pick<Path>({Path::relay, Path::automatic})
                                  : random.pick<Path>({Path::push, Path::pull});
    }
  }
}

std::array<ConstRows, 2> added_rows(const Problem& problem, int rank) {
  std::array<ConstRows, 2> rows;
  const RankInput& input = problem.ranks[index(rank)];
  for (std::size_t i = 0; i < input.added.size(); ++i) {
    rows[i] = {input.added[i].data(), input.tokens, problem.output_hidden(),
               problem.output_dtype()};
  }
  return rows;
}

void vary(Case& c, std::uint64_t seed) {
  Random random(seed);
  choose_stores(c, random);
  for (int i = 0; i < static_cast<int>(c.operations.size()); ++i) choose_locals(c, i, seed);
}

void expect(Case& c) {
  for (Operation& operation : c.operations) {
    operation.received.clear();
    operation.out.clear();
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      operation.received.push_back(expected_received(operation.problem, rank));
      operation.out.push_back(expected_out(operation.problem, rank));
    }
  }
}

std::string describe(const Case& c) {
  char text[320];
  std::snprintf(text, sizeof text,
                "%d ranks, %d experts (%s), %zu operations, %d slots, max tokens %d, hidden %d, "
                "top-k %d%s%s",
                c.num_ranks, c.options.num_experts,
                c.options.expert_rank.empty() ? "blocks" : "map", c.operations.size(),
                c.options.slots, c.options.max_tokens, c.options.max_hidden, c.options.max_topk,
                c.options.protocol == Protocol::automatic ? "" : ", protocol ",
                c.options.protocol == Protocol::automatic ? "" : name(c.options.protocol));
  return text;
}

}  // namespace ubep::test
