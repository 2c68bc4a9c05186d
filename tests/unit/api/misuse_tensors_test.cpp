// Tensors, payloads and gates that cannot be right: the text names the argument, the value seen and
// the value expected, and the same call with the right ones works afterwards. And what looks wrong
// but is allowed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "support/worker.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// One rank, four experts, four tokens of 24, top-k 2.
struct Alone {
  explicit Alone(Layout layout = Layout::rank_major, int max_payload = 0)
      : problem(make_problem({.ranks = 1, .experts_per_rank = 4, .tokens = 4, .layout = layout})),
        options(options_for(problem)),
        worker(problem, 0) {
    options.max_payload = max_payload;
    comm.push_back(Communicator::create(ThreadGroup(1).bootstrap(0), options));
  }
  Communicator& operator*() { return comm.front(); }

  Problem problem;
  CommunicatorOptions options;
  Worker worker;
  std::vector<Communicator> comm;
};

// --- dispatch ---

struct Call {
  Input in;
  Routing routing;
  DispatchOptions options;
};

struct BadCall {
  const char* name;
  Parts parts;
  std::function<void(Call&)> change;
};

void expect_all_refused(Layout layout, const std::vector<BadCall>& calls) {
  Alone alone(layout, 64);
  std::uint64_t epoch = 0;
  for (const BadCall& bad : calls) {
    SCOPED_TRACE(bad.name);
    Call call{alone.worker.x(), alone.worker.routing(), {.layout = layout}};
    bad.change(call);
    Handle handle;
    expect_error(ErrorCode::invalid_argument, bad.parts, [&] {
      (void)(*alone).start_dispatch(call.in, call.routing, call.options, handle);
    });
    expect_error(ErrorCode::invalid_argument, bad.parts,
                 [&] { (void)(*alone).dispatch(call.in, call.routing, call.options, handle); });
    EXPECT_FALSE(handle.holds_lease());
    EXPECT_EQ(alone.worker.round(*alone), "");
    EXPECT_EQ(alone.worker.handle.epoch(), ++epoch);
  }
}

TEST(DispatchTensorTest, ImpossibleSizesAndNullPointers) {
  const auto null = [](auto span) {
    using Span = decltype(span);
    return Span(typename Span::pointer(nullptr), span.size());
  };
  static const std::vector<std::uint8_t> active(4, 1);
  expect_all_refused(
      Layout::rank_major,
      {{"more rows than can be",
        {"x.num_rows", std::to_string(kHuge), "0..2147483647"},
        [](Call& c) { c.in.x.num_rows = kHuge; }},
       {"the most negative number",
        {"x.num_rows", "-9223372036854775808", "0..2147483647"},
        [](Call& c) { c.in.x.num_rows = std::numeric_limits<std::int64_t>::min(); }},
       {"an endless stride",
        {"x.stride_bytes", std::to_string(kHuge), "48..2147483648"},
        [](Call& c) { c.in.x.stride_bytes = kHuge; }},
       {"an endless row",
        {"x.hidden", std::to_string(kHuge), "1..24"},
        [](Call& c) { c.in.x.hidden = kHuge; }},
       {"null ids",
        {"routing.topk_idx.data()", "null", "8 elements"},
        [&](Call& c) { c.routing.topk_idx = null(c.routing.topk_idx); }},
       {"null weights",
        {"routing.topk_weights.data()", "null", "8 elements"},
        [&](Call& c) { c.routing.topk_weights = null(c.routing.topk_weights); }},
       {"too few marks",
        {"routing.active", "3", "4 tokens"},
        [](Call& c) { c.routing.active = std::span(active).first(3); }},
       {"null marks",
        {"routing.active.data()", "null", "4 elements"},
        [&](Call& c) { c.routing.active = null(std::span<const std::uint8_t>(active)); }},
       {"negative top-k", {"routing.topk", "-2", "1..2"}, [](Call& c) { c.routing.topk = -2; }}});
}

TEST(DispatchTensorTest, AnIdOutOfRangeInTheLastRowOnly) {
  static std::vector<std::int32_t> ids;
  const auto last_is = [](std::int32_t id) {
    return [id](Call& c) {
      ids.assign(c.routing.topk_idx.begin(), c.routing.topk_idx.end());
      ids.back() = id;
      c.routing.topk_idx = ids;
    };
  };
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    expect_all_refused(
        layout, {{"one too large", {"routing.topk_idx[3][1]", "4", "-1..3"}, last_is(4)},
                 {"one too small", {"routing.topk_idx[3][1]", "-2", "-1..3"}, last_is(-2)},
                 {"the largest", {"topk_idx[3][1]", "2147483647", "-1..3"}, last_is(2147483647)}});
  }
}

TEST(DispatchTensorTest, Enumerators) {
  expect_all_refused(Layout::rank_major,
                     {{"reduction",
                       {"reduction", "7", "0..3"},
                       [](Call& c) { c.options.reduction = static_cast<Reduction>(7); }},
                      {"weighting",
                       {"weighting", "3", "0..1"},
                       [](Call& c) { c.options.weighting = static_cast<Weighting>(3); }},
                      {"quant", {"quant", "6", "0..5"}, [](Call& c) {
                         c.options.quant = static_cast<Quant>(6);
                       }}});
}

TEST(DispatchTensorTest, Payloads) {
  static const std::vector<std::byte> bytes(4096);
  static Payload payload;
  const auto with = [](const Payload& wrong) {
    return [wrong](Call& c) {
      payload = wrong;
      c.in.payloads = {&payload, 1};
    };
  };
  expect_all_refused(
      Layout::rank_major,
      {{"no bytes", {"'scale'", "0 bytes", "1..32768"}, with({"scale", bytes.data(), 0})},
       {"negative", {"'scale'", "-4 bytes", "1..32768"}, with({"scale", bytes.data(), -4})},
       {"null", {"'scale'", "no data", "4 x 8 bytes"}, with({"scale", nullptr, 8})},
       {"too narrow",
        {"'scale'", "stride_bytes 4", "at least 8"},
        with({"scale", bytes.data(), 8, 4})},
       {"too many bytes",
        {"payloads", "72", "at most 64", "max_payload"},
        with({"scale", bytes.data(), 72})}});
}

TEST(DispatchTensorTest, Out) {
  static std::vector<std::byte> memory(65536);
  const auto out = [](std::int64_t rows, std::int64_t hidden, DType dtype) {
    return [=](Call& c) { c.in.out = {memory.data(), rows, hidden, dtype}; };
  };
  expect_all_refused(Layout::expert_major,
                     {{"hidden", {"out", "23", "24"}, out(64, 23, DType::bf16)},
                      {"dtype", {"out", "fp16", "bf16"}, out(64, 24, DType::fp16)},
                      {"rows", {"out.num_rows", "-1", "0.."}, out(-1, 24, DType::bf16)},
                      {"null",
                       {"out.data", "null", "8 rows"},
                       [](Call& c) {
                         c.in.out = {nullptr, 8, 24, DType::bf16};
                       }},
                      {"over x", {"out overlaps x"}, [](Call& c) {
                         c.in.out = {const_cast<void*>(c.in.x.data), 4, 24, DType::bf16};
                       }}});
}

// --- combine ---

TEST(CombineTensorTest, AddedAndOverlaps) {
  Alone alone;
  std::vector<std::byte> memory(65536);
  const auto rows = [&](std::size_t at, std::int64_t n, std::int64_t hidden = 24,
                        DType dtype = DType::bf16) {
    return Rows{memory.data() + at, n, hidden, dtype};
  };
  ASSERT_TRUE(alone.worker.dispatch(*alone).ok());
  const std::int64_t received = alone.worker.handle.received().num_rows;
  const std::vector<std::pair<CombineArgs, Parts>> wrong{
      {{.out = rows(0, 4), .added = {rows(8192, 3)}}, {"added.num_rows", "3", "4"}},
      {{.out = rows(0, 4), .added = {rows(8192, 4, 23)}}, {"added.hidden", "23", "24"}},
      {{.out = rows(0, 4), .added = {rows(8192, 4, 24, DType::fp16)}},
       {"added.dtype", "fp16", "bf16"}},
      {{.out = rows(0, 4), .added = {ConstRows{nullptr, 4, 24, DType::bf16}}},
       {"added.data", "null", "4 rows"}},
      {{.out = rows(0, 4), .added = {rows(48, 4)}}, {"out overlaps added"}},
      {{.out = rows(0, 4), .y = rows(96, received)}, {"out overlaps y"}},
      {{.out = rows(0, kHuge)}, {"out.num_rows", std::to_string(kHuge), "4"}},
      {{.out = {memory.data(), 4, 24, DType::bf16, kHuge}},
       {"out.stride_bytes", std::to_string(kHuge), "48..2147483648"}}};
  for (const auto& [args, parts] : wrong) {
    expect_error(ErrorCode::invalid_argument, parts,
                 [&] { (void)(*alone).start_combine(alone.worker.handle, args); });
    expect_error(ErrorCode::invalid_argument, parts,
                 [&] { (void)(*alone).combine(alone.worker.handle, args); });
    EXPECT_TRUE(alone.worker.handle.holds_lease());
  }
  EXPECT_TRUE(alone.worker.combine(*alone).ok());
  EXPECT_EQ(alone.worker.out_difference(), "");
}

// --- what is allowed ---

constexpr Layout kLayouts[] = {Layout::rank_major, Layout::expert_major};

// The bytes of a combined round in which every tensor lies where `place` says.
std::vector<std::byte> combined(Alone& alone, Layout layout, const ConstRows& x, Rows out,
                                const std::array<ConstRows, 2>& added = {}) {
  Worker worker(alone.problem, 0);
  EXPECT_TRUE((*alone).dispatch(x, worker.routing(), {.layout = layout}, worker.handle).ok());
  CombineArgs args = worker.prepare_combine();
  args.out = out;
  args.added = added;
  EXPECT_TRUE((*alone).combine(worker.handle, args).ok());
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < out.num_rows; ++i) {
    bytes.insert(bytes.end(), out.row(i), out.row(i) + out.row_bytes());
  }
  return bytes;
}

TEST(AllowedTensorTest, AnyAddress) {
  for (const Layout layout : kLayouts) {
    Alone alone(layout);
    const ConstRows x = alone.worker.x();
    std::vector<std::byte> result(192);
    const auto right = combined(alone, layout, x, {result.data(), 4, 24, DType::bf16});
    std::vector<std::byte> from(512);
    std::vector<std::byte> to(512);
    for (const std::int64_t odd : {1, 3, 7}) {
      const Rows shifted{from.data() + odd, 4, 24, DType::bf16, 48 + odd};
      for (int t = 0; t < 4; ++t) std::memcpy(shifted.row(t), x.row(t), 48);
      EXPECT_EQ(combined(alone, layout, shifted, {to.data() + odd, 4, 24, DType::bf16, 48 + odd}),
                right)
          << odd;
    }
  }
}

// In place of the tokens, and onto what is added.
TEST(AllowedTensorTest, OutMayBeXOrWhatIsAdded) {
  for (const Layout layout : kLayouts) {
    Alone alone(layout);
    const ConstRows x = alone.worker.x();
    std::vector<std::byte> result(192);
    const Rows out{result.data(), 4, 24, DType::bf16};
    const auto right = combined(alone, layout, x, out);
    std::vector<std::byte> copy(192);
    std::memcpy(copy.data(), x.data, copy.size());
    const Rows same{copy.data(), 4, 24, DType::bf16};
    EXPECT_EQ(combined(alone, layout, same, same), right);
    const auto sums = combined(alone, layout, x, out, {x});
    std::memcpy(copy.data(), x.data, copy.size());
    EXPECT_EQ(combined(alone, layout, x, same, {same}), sums);
  }
}

TEST(AllowedTensorTest, ANaNWeightSpoilsItsTokenAlone) {
  for (const Layout layout : kLayouts) {
    Alone alone(layout);
    std::vector<std::byte> result(192);
    const Rows out{result.data(), 4, 24, DType::bf16};
    const auto right = combined(alone, layout, alone.worker.x(), out);
    alone.problem.ranks[0].topk_weights[5] = std::nanf("");
    const auto spoilt = combined(alone, layout, alone.worker.x(), out);
    EXPECT_TRUE(std::equal(right.begin(), right.begin() + 96, spoilt.begin()));
    EXPECT_TRUE(std::equal(right.begin() + 144, right.end(), spoilt.begin() + 144));
    for (std::size_t i = 96; i < 144; i += 2) {
      const auto high = std::to_integer<unsigned>(spoilt[i + 1]);
      EXPECT_EQ(high & 0x7F, 0x7FU) << "column " << (i - 96) / 2 << " is no NaN";
    }
  }
}

TEST(AllowedTensorTest, NoTokensNeedNoMemory) {
  const Problem problem = make_problem({.ranks = 1, .tokens = 0});
  Communicator comm = Communicator::create(ThreadGroup(1).bootstrap(0), options_for(problem));
  Handle handle;
  const Input nothing(nullptr, 0, 24, DType::bf16);
  ASSERT_TRUE(comm.dispatch(nothing, {.topk = 2}, {}, handle).ok());
  EXPECT_EQ(handle.received().num_rows, 0);
  EXPECT_TRUE(comm.combine(handle, {.out = {nullptr, 0, 24, DType::bf16}}).ok());
}

}  // namespace
}  // namespace ubep::test
