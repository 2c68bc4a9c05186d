#include "support/reference.hpp"

#include <algorithm>
#include <tuple>

#include "support/numbers.hpp"
#include "support/row_codec_reference.hpp"

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

// One (token, k) that a rank receives.
struct Arrival {
  int source;
  std::int64_t token;
  int k;
  std::int32_t local;  // local expert id
  float weight;
};

const std::byte* token_row(const Problem& problem, int source, std::int64_t token) {
  const std::size_t row_bytes = index(problem.hidden) * size_of(problem.dtype);
  return problem.ranks[index(source)].x.data() + index(token) * row_bytes;
}

// By the same rules as record_of(), for a rank that may have no token.
std::size_t record_bytes_of(const Problem& problem) {
  const auto hidden = index(problem.hidden);
  std::size_t bytes = hidden * size_of(problem.dtype);
  if (problem.quant != Quant::none) {
    const std::vector<std::byte> zeros(bytes);
    bytes = reference_encode(problem.quant, problem.dtype, zeros.data(), hidden).size();
  }
  for (const int payload : problem.payloads) bytes = (bytes + 7) / 8 * 8 + index(payload);
  return bytes;
}

std::int32_t chosen(const Problem& problem, int source, std::int64_t token, int k) {
  return problem.ranks[index(source)].topk_idx[index(token * problem.topk + k)];
}

float weight_of(const Problem& problem, int source, std::int64_t token, int k) {
  return problem.ranks[index(source)].topk_weights[index(token * problem.topk + k)];
}

// Everything sent to `rank`, in the order (source, token, k); with `all` also the choices of other
// ranks' experts, local = -1.
std::vector<Arrival> arrivals_of(const Problem& problem, int rank, bool all = false) {
  const std::vector<std::int32_t> local_experts = experts_of(problem, rank);
  std::vector<Arrival> arrivals;
  for (int source = 0; source < problem.num_ranks(); ++source) {
    if (!problem.sources[index(source)]) continue;
    for (std::int64_t token = 0; token < problem.ranks[index(source)].tokens; ++token) {
      for (int k = 0; k < problem.topk; ++k) {
        const std::int32_t id = chosen(problem, source, token, k);
        const auto at = std::find(local_experts.begin(), local_experts.end(), id);
        const bool here = id >= 0 && at != local_experts.end();
        if (!here && !all) continue;
        const auto local = here ? static_cast<std::int32_t>(at - local_experts.begin()) : -1;
        arrivals.push_back({source, token, k, local, weight_of(problem, source, token, k)});
      }
    }
  }
  return arrivals;
}

void append_row(const Problem& problem, const Arrival& arrival, ExpectedReceived& expected) {
  const std::vector<std::byte> record = record_of(problem, arrival.source, arrival.token);
  const std::size_t row_bytes = record.size();
  expected.rows.insert(expected.rows.end(), record.begin(), record.end());
  if (problem.zeroed[index(arrival.source)])
    std::fill(expected.rows.end() - static_cast<std::ptrdiff_t>(row_bytes), expected.rows.end(),
              std::byte{0});
  ++expected.num_rows;
}

// Rows of each local expert, from (local expert, row) pairs in row order.
void list_expert_rows(const std::vector<std::pair<std::int32_t, std::int32_t>>& pairs,
                      std::size_t num_local, ExpectedReceived& expected) {
  expected.expert_counts.assign(num_local, 0);
  expected.expert_offsets.assign(num_local + 1, 0);
  for (std::size_t e = 0; e < num_local; ++e) {
    for (const auto& [local, row] : pairs) {
      if (local != static_cast<std::int32_t>(e)) continue;
      expected.expert_rows.push_back(row);
      ++expected.expert_counts[e];
    }
    expected.expert_offsets[e + 1] = static_cast<std::int32_t>(expected.expert_rows.size());
  }
}

ExpectedReceived receive_rank_major(const Problem& problem, int rank) {
  ExpectedReceived expected;
  expected.src_counts.assign(problem.ranks.size(), 0);
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  std::pair<int, std::int64_t> last{-1, -1};
  for (const Arrival& arrival : arrivals_of(problem, rank, problem.every_token)) {
    if (last != std::pair{arrival.source, arrival.token}) {
      last = {arrival.source, arrival.token};
      append_row(problem, arrival, expected);
      ++expected.src_counts[index(arrival.source)];
      expected.topk_idx.resize(index(expected.num_rows * problem.topk), -1);
      expected.topk_weights.resize(index(expected.num_rows * problem.topk), 0.0F);
    }
    if (arrival.local < 0) continue;
    const std::int64_t row = expected.num_rows - 1;
    expected.topk_idx[index(row * problem.topk + arrival.k)] = arrival.local;
    expected.topk_weights[index(row * problem.topk + arrival.k)] = arrival.weight;
    pairs.emplace_back(arrival.local, static_cast<std::int32_t>(row));
  }
  list_expert_rows(pairs, experts_of(problem, rank).size(), expected);
  return expected;
}

ExpectedReceived receive_topk1(const Problem& problem, int rank) {
  ExpectedReceived expected;
  expected.src_counts.assign(problem.ranks.size(), 0);
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (const Arrival& arrival : arrivals_of(problem, rank)) {
    pairs.emplace_back(arrival.local, static_cast<std::int32_t>(expected.num_rows));
    append_row(problem, arrival, expected);
    ++expected.src_counts[index(arrival.source)];
    expected.topk_idx.push_back(arrival.local);
    expected.topk_weights.push_back(arrival.weight);
    expected.row_choices.push_back(arrival.k);
  }
  list_expert_rows(pairs, experts_of(problem, rank).size(), expected);
  return expected;
}

ExpectedReceived receive_by_expert(const Problem& problem, int rank) {
  ExpectedReceived expected;
  std::vector<Arrival> arrivals = arrivals_of(problem, rank);
  std::sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) {
    return std::tie(a.local, a.source, a.token, a.k) < std::tie(b.local, b.source, b.token, b.k);
  });
  const std::size_t row_bytes = record_bytes_of(problem);
  const std::size_t num_local = experts_of(problem, rank).size();
  std::size_t next = 0;
  for (std::size_t e = 0; e < num_local; ++e) {
    expected.expert_offsets.push_back(static_cast<std::int32_t>(expected.num_rows));
    expected.expert_counts.push_back(0);
    for (; next < arrivals.size() && index(arrivals[next].local) == e; ++next) {
      append_row(problem, arrivals[next], expected);
      expected.row_weights.push_back(arrivals[next].weight);
      expected.row_choices.push_back(arrivals[next].k);
      ++expected.expert_counts.back();
    }
    const bool padded = problem.layout == Layout::expert_padded;
    expected.undefined.resize(index(expected.num_rows), false);
    while (padded ? expected.num_rows < static_cast<std::int64_t>(e + 1) * problem.expert_capacity
                  : expected.num_rows % problem.expert_alignment != 0) {
      expected.rows.resize(expected.rows.size() + row_bytes, std::byte{0});
      expected.undefined.push_back(padded);
      expected.row_weights.push_back(0);
      expected.row_choices.push_back(-1);
      ++expected.num_rows;
    }
  }
  expected.expert_offsets.push_back(static_cast<std::int32_t>(expected.num_rows));
  return expected;
}

Expert expert_of(const Problem& problem) {
  return {problem.function, problem.dtype, problem.hidden, problem.output_dtype(),
          problem.output_hidden()};
}

// Adds weight * y of the chosen experts of one token to `sum`, k ascending. Only experts of
// `owner`, or of every rank when it is -1.
struct TokenSum {
  const Problem& problem;
  const std::vector<std::int32_t>& owners;
  int rank;

  void add(std::int64_t token, int owner, std::vector<float>& sum) const {
    const std::vector<std::byte> values =
        values_of(problem, record_of(problem, rank, token).data());
    const std::byte* x = values.data();
    for (int k = 0; k < problem.topk; ++k) {
      const std::int32_t id = chosen(problem, rank, token, k);
      if (id < 0 || (owner >= 0 && owners[index(id)] != owner)) continue;
      const float weight = problem.unweighted ? 1.0F : weight_of(problem, rank, token, k);
      if (problem.topk1) {
        add_rounded(id, weight, x, sum);
      } else {
        expert_of(problem).accumulate(id, weight, x, sum.data());
      }
    }
  }

  // topk1: the row that the owner gives back is weight * y, rounded.
  void add_rounded(std::int32_t id, float weight, const std::byte* x,
                   std::vector<float>& sum) const {
    std::vector<float> product(sum.size(), 0.0F);
    expert_of(problem).accumulate(id, weight, x, product.data());
    for (std::size_t h = 0; h < sum.size(); ++h) {
      const Bits row = round_to(problem.output_dtype(), product[h]);
      sum[h] = test::add(sum[h], to_float(problem.output_dtype(), row));
    }
  }
};

void round_all(DType dtype, std::vector<float>& values) {
  for (float& value : values) value = to_float(dtype, round_to(dtype, value));
}

void add_all(const std::vector<float>& from, std::vector<float>& to) {
  for (std::size_t h = 0; h < to.size(); ++h) to[h] = add(to[h], from[h]);
}

// What one rank contributes to a token: in rank_major its row is rounded before it is added.
std::vector<float> partial_sum(const TokenSum& token_sum, std::int64_t token, int owner) {
  const Problem& problem = token_sum.problem;
  std::vector<float> partial(index(problem.output_hidden()), 0.0F);
  token_sum.add(token, owner, partial);
  if (problem.layout == Layout::rank_major && !problem.topk1) {
    round_all(problem.output_dtype(), partial);
  }
  return partial;
}

// The sums of each host's ranks, rounded, one after the other.
std::vector<float> sum_by_host(const TokenSum& token_sum, std::int64_t token) {
  const Problem& problem = token_sum.problem;
  const std::vector<float> zero(index(problem.output_hidden()), 0.0F);
  std::vector<float> sum = zero;
  std::vector<float> host = zero;
  for (int owner = 0; owner < problem.num_ranks(); ++owner) {
    add_all(partial_sum(token_sum, token, owner), host);
    const bool is_last = owner + 1 == problem.num_ranks() ||
                         problem.host_of[index(owner + 1)] != problem.host_of[index(owner)];
    if (!is_last) continue;
    round_all(problem.output_dtype(), host);
    add_all(host, sum);
    host = zero;
  }
  return sum;
}

bool sums_per_rank(const Problem& problem) {
  return problem.layout == Layout::rank_major || problem.reduction == Reduction::per_rank;
}

}  // namespace

std::vector<std::int32_t> owners_of(const Problem& problem) {
  if (!problem.expert_rank.empty()) return problem.expert_rank;
  std::vector<std::int32_t> owners;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    const int extra = rank < problem.num_experts % problem.num_ranks() ? 1 : 0;
    const int count = problem.num_experts / problem.num_ranks() + extra;
    owners.insert(owners.end(), index(count), rank);
  }
  return owners;
}

std::vector<std::int32_t> experts_of(const Problem& problem, int rank) {
  const std::vector<std::int32_t> owners = owners_of(problem);
  std::vector<std::int32_t> experts;
  for (std::size_t id = 0; id < owners.size(); ++id) {
    if (owners[id] == rank) experts.push_back(static_cast<std::int32_t>(id));
  }
  return experts;
}

std::vector<std::byte> record_of(const Problem& problem, int source, std::int64_t token) {
  const std::byte* x = token_row(problem, source, token);
  const auto hidden = index(problem.hidden);
  std::vector<std::byte> record(x, x + hidden * size_of(problem.dtype));
  if (problem.quant != Quant::none) {
    record = reference_encode(problem.quant, problem.dtype, x, hidden);
  }
  for (std::size_t i = 0; i < problem.payloads.size(); ++i) {
    const std::size_t bytes = index(problem.payloads[i]);
    const std::byte* from = problem.ranks[index(source)].payloads[i].data() + index(token) * bytes;
    record.resize((record.size() + 7) / 8 * 8, std::byte{0});
    record.insert(record.end(), from, from + bytes);
  }
  return record;
}

std::vector<std::byte> values_of(const Problem& problem, const std::byte* record) {
  const auto hidden = index(problem.hidden);
  const std::size_t width = size_of(problem.dtype);
  if (problem.quant == Quant::none) return {record, record + hidden * width};
  const std::vector<float> numbers = reference_decode(problem.quant, record, hidden);
  std::vector<std::byte> values(hidden * width);
  for (std::size_t h = 0; h < hidden; ++h) {
    store_bits(problem.dtype, round_to(problem.dtype, numbers[h]), values.data() + h * width);
  }
  return values;
}

ExpectedReceived expected_received(const Problem& problem, int rank) {
  ExpectedReceived expected = problem.layout != Layout::rank_major
                                  ? receive_by_expert(problem, rank)
                              : problem.topk1 ? receive_topk1(problem, rank)
                                              : receive_rank_major(problem, rank);
  expected.row_bytes = record_bytes_of(problem);
  return expected;
}

std::vector<std::byte> expected_out(const Problem& problem, int rank) {
  const std::vector<std::int32_t> owners = owners_of(problem);
  const TokenSum token_sum{problem, owners, rank};
  const std::size_t row_bytes = index(problem.output_hidden()) * size_of(problem.output_dtype());
  const std::int64_t tokens = problem.ranks[index(rank)].tokens;
  std::vector<std::byte> out(index(tokens) * row_bytes);
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::vector<float> sum(index(problem.output_hidden()), 0.0F);
    const bool by_host = problem.layout == Layout::rank_major && !problem.topk1 &&
                         !problem.host_of.empty() && problem.reduction != Reduction::per_rank;
    if (by_host) {
      sum = sum_by_host(token_sum, token);
    } else if (!sums_per_rank(problem)) {
      token_sum.add(token, -1, sum);
    } else {
      for (int owner = 0; owner < problem.num_ranks(); ++owner) {
        const std::vector<float> partial = partial_sum(token_sum, token, owner);
        for (std::size_t h = 0; h < sum.size(); ++h) sum[h] = add(sum[h], partial[h]);
      }
    }
    for (const std::vector<std::byte>& added : problem.ranks[index(rank)].added) {
      for (std::size_t h = 0; h < sum.size(); ++h) {
        const DType dtype = problem.output_dtype();
        const std::byte* element = added.data() + index(token) * row_bytes + h * size_of(dtype);
        sum[h] = add(sum[h], to_float(dtype, load_bits(dtype, element)));
      }
    }
    expert_of(problem).round(sum.data(), out.data() + index(token) * row_bytes);
  }
  return out;
}

void Expert::apply(std::int32_t id, const std::byte* x, std::byte* y) const {
  for (int h = 0; h < out_hidden; ++h, y += size_of(out_dtype)) {
    const Bits bits = load_bits(dtype, x + index(h % hidden) * size_of(dtype));
    const float value = to_float(dtype, bits);
    Bits result = dtype == out_dtype ? bits : round_to(out_dtype, value);
    switch (function) {
      case ExpertFunction::identity:
        break;
      case ExpertFunction::scaled:
        result = round_to(out_dtype, multiply(value, static_cast<float>(1 + id % 8) / 8));
        break;
      case ExpertFunction::square_plus:
        result = round_to(out_dtype, add(multiply(value, value), static_cast<float>(id)));
        break;
    }
    store_bits(out_dtype, result, y);
  }
}

void Expert::accumulate(std::int32_t id, float weight, const std::byte* x, float* sum) const {
  std::vector<std::byte> y(index(out_hidden) * size_of(out_dtype));
  apply(id, x, y.data());
  for (int h = 0; h < out_hidden; ++h) {
    const Bits bits = load_bits(out_dtype, y.data() + index(h) * size_of(out_dtype));
    sum[h] = add(sum[h], multiply(weight, to_float(out_dtype, bits)));
  }
}

void Expert::round(const float* sum, std::byte* y) const {
  for (int h = 0; h < out_hidden; ++h) {
    store_bits(out_dtype, round_to(out_dtype, sum[h]), y + index(h) * size_of(out_dtype));
  }
}

}  // namespace ubep::test
