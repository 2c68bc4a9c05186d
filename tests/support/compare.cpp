#include "support/compare.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>

#include "support/numbers.hpp"

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
std::string text(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return describe(DType::fp32, std::bit_cast<Bits>(value));
  } else {
    return std::to_string(value);
  }
}

template <class T>
bool same(T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    return same_element(DType::fp32, std::bit_cast<Bits>(a), std::bit_cast<Bits>(b));
  } else {
    return a == b;
  }
}

std::string compare_number(const char* what, std::int64_t got, std::int64_t want) {
  if (got == want) return "";
  return std::string(what) + ": got " + text(got) + ", want " + text(want);
}

template <class T>
std::string compare_list(const char* what, std::span<const T> got, const std::vector<T>& want) {
  if (got.size() != want.size()) {
    return compare_number((std::string(what) + " size").c_str(),
                          static_cast<std::int64_t>(got.size()),
                          static_cast<std::int64_t>(want.size()));
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (same(got[i], want[i])) continue;
    return std::string(what) + "[" + std::to_string(i) + "]: got " + text(got[i]) + ", want " +
           text(want[i]);
  }
  return "";
}

struct RowShape {
  DType dtype = DType::bf16;
  int hidden = 0;

  std::size_t bytes() const { return index(hidden) * size_of(dtype); }
};

std::string compare_row(const RowShape& shape, const std::byte* got, const std::byte* want) {
  const std::size_t width = size_of(shape.dtype);
  for (int h = 0; h < shape.hidden; ++h) {
    const Bits g = load_bits(shape.dtype, got + index(h) * width);
    const Bits w = load_bits(shape.dtype, want + index(h) * width);
    if (same_element(shape.dtype, g, w)) continue;
    return "column " + std::to_string(h) + ": got " + describe(shape.dtype, g) + ", want " +
           describe(shape.dtype, w);
  }
  return "";
}

std::string compare_place(const Received& got, const Rows& out) {
  if (got.num_rows == 0 || !got.row_table.empty()) return "";
  if (out.data == nullptr) {
    if (got.stride_bytes % 64 == 0) return "";
    return "stride_bytes: got " + text(got.stride_bytes) + ", want a multiple of 64";
  }
  if (got.base != out.data) return "base: got another address than that of out";
  return compare_number("stride_bytes", got.stride_bytes, out.stride());
}

std::string compare_rows(const Received& got, const ExpectedReceived& want) {
  if (!got.row_table.empty() && index(got.num_rows) != got.row_table.size()) {
    return compare_number("row_table size", static_cast<std::int64_t>(got.row_table.size()),
                          got.num_rows);
  }
  // Records are compared byte by byte.
  const bool plain = got.quant == Quant::none && got.payloads.empty();
  const RowShape shape = plain ? RowShape{got.dtype, got.hidden}
                               : RowShape{DType::u8, static_cast<int>(want.row_bytes)};
  if (index(got.row_bytes) != want.row_bytes) {
    return compare_number("row_bytes", got.row_bytes, static_cast<std::int64_t>(want.row_bytes));
  }
  for (std::int64_t i = 0; i < got.num_rows; ++i) {
    if (!want.undefined.empty() && want.undefined[index(i)]) continue;
    const std::string difference =
        compare_row(shape, got.row(i), want.rows.data() + index(i) * shape.bytes());
    if (!difference.empty()) return "received row " + text(i) + ", " + difference;
  }
  return "";
}

std::string compare_shape(const Received& got, const Problem& problem) {
  std::string difference = compare_number("hidden", got.hidden, problem.hidden);
  if (difference.empty()) difference = compare_number("topk", got.topk, problem.topk);
  if (difference.empty()) {
    difference =
        compare_number("dtype", static_cast<int>(got.dtype), static_cast<int>(problem.dtype));
  }
  if (difference.empty()) {
    difference =
        compare_number("layout", static_cast<int>(got.layout), static_cast<int>(problem.layout));
  }
  if (difference.empty()) {
    difference =
        compare_number("quant", static_cast<int>(got.quant), static_cast<int>(problem.quant));
  }
  if (difference.empty()) {
    difference = compare_number("payloads", std::ssize(got.payloads), std::ssize(problem.payloads));
  }
  for (std::size_t i = 0; difference.empty() && i < problem.payloads.size(); ++i) {
    difference = compare_number("bytes of a payload", got.payloads[i].bytes, problem.payloads[i]);
  }
  std::uint64_t sources = 0;  // of the first 64 ranks
  for (std::size_t q = 0; q < std::min<std::size_t>(problem.ranks.size(), 64); ++q) {
    if (problem.sources[q] && !problem.zeroed[q]) sources |= std::uint64_t{1} << q;
  }
  if (difference.empty()) {
    difference = compare_number("sources", static_cast<std::int64_t>(got.sources),
                                static_cast<std::int64_t>(sources));
  }
  return difference;
}

std::string first_of(std::initializer_list<std::string> differences) {
  for (const std::string& difference : differences) {
    if (!difference.empty()) return difference;
  }
  return "";
}

// What `rank` is shown of one token in the mapped view.
std::string compare_mapped_token(const Received& got, const Problem& problem,
                                 const std::vector<std::int32_t>& experts, int source,
                                 std::int64_t place) {
  const RankInput& input = problem.ranks[index(source)];
  const std::int64_t max_tokens =
      static_cast<std::int64_t>(got.mapped_idx.size()) / problem.num_ranks() / problem.topk;
  const std::int64_t token = place - source * max_tokens;
  bool meant = false;
  for (int k = 0; k < problem.topk; ++k) {
    std::int32_t local = -1;
    float weight = 0.0F;
    const std::size_t choice = index(token * problem.topk + k);
    if (token < input.tokens) {
      const auto at = std::find(experts.begin(), experts.end(), input.topk_idx[choice]);
      if (at != experts.end()) {
        local = static_cast<std::int32_t>(at - experts.begin());
        weight = input.topk_weights[choice];
      }
    }
    meant = meant || local >= 0;
    const std::size_t shown = index(place * problem.topk + k);
    const std::string difference =
        first_of({compare_number("mapped_idx", got.mapped_idx[shown], local),
                  same(got.mapped_weights[shown], weight)
                      ? ""
                      : "mapped_weights: got " + text(got.mapped_weights[shown]) + ", want " +
                            text(weight)});
    if (!difference.empty()) return difference + " at k " + std::to_string(k);
  }
  if (!meant) return "";
  const std::byte* row =
      got.mapped + source * got.mapped_rank_stride_bytes + token * got.stride_bytes;
  const std::vector<std::byte> record = record_of(problem, source, token);
  const RowShape shape = problem.is_plain() ? RowShape{problem.dtype, problem.hidden}
                                            : RowShape{DType::u8, static_cast<int>(record.size())};
  return compare_row(shape, row, record.data());
}

// Lists of rank_major rows; in a tensor of the caller's they go on to its end.
std::string compare_choices(const Received& got, ExpectedReceived want, const Rows& out) {
  if (out.data != nullptr && want.num_rows != 0) {
    const std::size_t each = want.topk_idx.size() / index(want.num_rows);
    want.topk_idx.resize(index(out.num_rows) * each, -1);
    want.topk_weights.resize(index(out.num_rows) * each, 0.0F);
  } else if (out.data != nullptr) {
    want.topk_idx.assign(got.topk_idx.size(), -1);
    want.topk_weights.assign(got.topk_idx.size(), 0.0F);
  }
  return first_of({
      compare_list("topk_idx", got.topk_idx, want.topk_idx),
      compare_list("topk_weights", got.topk_weights, want.topk_weights),
  });
}

}  // namespace

std::string compare_row_weights(std::span<const float> got, const ExpectedReceived& want) {
  return compare_list("row_weights", got, want.row_weights);
}

std::string compare_row_choices(std::span<const std::int32_t> got, const ExpectedReceived& want) {
  return compare_list("row_choices", got, want.row_choices);
}

std::string compare_received(const Received& got, const ExpectedReceived& want,
                             const Problem& problem, const Rows& out) {
  const std::string head = first_of({
      compare_place(got, out),
      compare_shape(got, problem),
      compare_list("expert_counts", got.expert_counts, want.expert_counts),
      compare_list("expert_offsets", got.expert_offsets, want.expert_offsets),
      compare_number("num_rows", got.num_rows, want.num_rows),
  });
  if (!head.empty()) return head;
  if (problem.layout != Layout::rank_major) return compare_rows(got, want);
  return first_of({
      compare_list("src_counts", got.src_counts, want.src_counts),
      compare_choices(got, want, out),
      compare_list("expert_rows", got.expert_rows, want.expert_rows),
      compare_rows(got, want),
  });
}

std::string compare_mapped(const Received& got, const Problem& problem, int rank, int max_tokens) {
  const std::int64_t places = static_cast<std::int64_t>(problem.num_ranks()) * max_tokens;
  const std::int64_t size = places * problem.topk;
  std::string difference = first_of({
      compare_number("mapped_idx size", static_cast<std::int64_t>(got.mapped_idx.size()), size),
      compare_number("mapped_weights size", static_cast<std::int64_t>(got.mapped_weights.size()),
                     size),
  });
  if (!difference.empty()) return difference;
  const std::vector<std::int32_t> experts = experts_of(problem, rank);
  for (std::int64_t place = 0; place < places; ++place) {
    const int source = static_cast<int>(place / max_tokens);
    difference = compare_mapped_token(got, problem, experts, source, place);
    if (!difference.empty()) {
      return "mapped source " + std::to_string(source) + ", token " + text(place % max_tokens) +
             ", " + difference;
    }
  }
  return "";
}

std::string compare_out(const Rows& got, const std::vector<std::byte>& want,
                        const std::vector<std::uint8_t>& valid) {
  const RowShape shape{got.dtype, static_cast<int>(got.hidden)};
  for (std::int64_t i = 0; i < got.num_rows; ++i) {
    if (!valid.empty() && valid[index(i)] == 0) continue;
    const std::string difference =
        compare_row(shape, got.row(i), want.data() + index(i) * shape.bytes());
    if (!difference.empty()) return "combined token " + text(i) + ", " + difference;
  }
  return "";
}

void Hash::add(std::uint64_t number) {
  value_ = (value_ ^ number) * 0x100000001b3ULL;
  value_ ^= value_ >> 29;
}

void Hash::add(DType dtype, const std::byte* elements, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const Bits bits = load_bits(dtype, elements + i * size_of(dtype));
    add(is_nan(dtype, bits) ? ~std::uint64_t{0} : bits);
  }
}

}  // namespace ubep::test
