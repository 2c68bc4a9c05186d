// The row kernels against a scalar model, once per instruction set that this machine has.
#include "memory/row_kernels.hpp"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/math.hpp"
#include "memory/copy.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"
#include "support/vector_targets.hpp"

namespace ubep {
namespace {

using test::Bits;
using test::Random;
using test::round_to;
using test::to_float;

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kMargin = 128;
constexpr DType kTypes[] = {DType::bf16, DType::fp16, DType::fp32};

// Rows of one sum, each in memory of its own at an odd element.
struct Terms {
  DType dtype = DType::bf16;
  std::size_t hidden = 0;
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> rows;
  std::vector<float> weights;
  std::vector<std::uint8_t> ends;

  void add(const std::vector<Bits>& elements) {
    const std::size_t width = size_of(dtype);
    memory.emplace_back((elements.size() + 1) * width);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      test::store_bits(dtype, elements[i], memory.back().data() + (i + 1) * width);
    }
    hidden = elements.size();
    rows.clear();
    for (const auto& row : memory) rows.push_back(row.data() + width);
  }
  RowSum sum() const {
    return {.rows = rows,
            .weights = weights.empty() ? nullptr : weights.data(),
            .group_end = ends.empty() ? nullptr : ends.data(),
            .hidden = hidden,
            .dtype = dtype};
  }
  Bits element(std::size_t row, std::size_t i) const {
    return test::load_bits(dtype, rows[row] + i * size_of(dtype));
  }
  // One rounding per product, sum and result.
  Bits expected(std::size_t i) const {
    float total = 0;
    float partial = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      float term = to_float(dtype, element(r, i));
      if (!weights.empty()) term = test::multiply(weights[r], term);
      partial = test::add(partial, term);
      if (ends.empty() || ends[r] == 0) continue;
      total = test::add(total, partial);
      partial = 0;
    }
    return round_to(dtype, ends.empty() ? partial : total);
  }
};

// Output memory with guards on both sides of [0, room).
class Output {
 public:
  explicit Output(std::size_t room) : room_(room), memory_(room + 2 * kMargin + 64, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kMargin;
    first_ = kMargin + (64 - address % 64) % 64;
  }
  std::byte* data() { return memory_.data() + first_; }
  bool guards_intact() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(first_);
    return std::all_of(memory_.begin(), begin, is_guard) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(room_), memory_.end(), is_guard);
  }

 private:
  std::size_t room_;
  std::vector<std::byte> memory_;
  std::size_t first_ = 0;
};

// Sums in both ways and compares each element with the model.
void check(const Terms& terms) {
  const std::size_t bytes = terms.hidden * size_of(terms.dtype);
  Output plain(bytes);
  sum_rows(terms.sum(), plain.data());
  Output streamed(round_up(bytes, kLineBytes));
  sum_rows_streaming(terms.sum(), streamed.data());
  store_fence();
  ASSERT_TRUE(plain.guards_intact()) << "hidden " << terms.hidden;
  ASSERT_TRUE(streamed.guards_intact()) << "hidden " << terms.hidden;
  for (std::size_t i = 0; i < terms.hidden; ++i) {
    const std::size_t at = i * size_of(terms.dtype);
    const Bits want = terms.expected(i);
    for (Output* out : {&plain, &streamed}) {
      const Bits got = test::load_bits(terms.dtype, out->data() + at);
      ASSERT_TRUE(test::same_element(terms.dtype, got, want))
          << name(terms.dtype) << (out == &plain ? "" : ", streaming") << ", element " << i
          << " of " << terms.hidden << ": got " << test::describe(terms.dtype, got) << ", want "
          << test::describe(terms.dtype, want);
    }
  }
}

class RowKernelsTest : public test::OnEachTarget {};

INSTANTIATE_TEST_SUITE_P(Targets, RowKernelsTest, test::each_target(), test::TargetName());

// A row that is summed alone comes back, but for -0, which +0 swallows.
TEST_P(RowKernelsTest, EverySixteenBitValueComesBack) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    std::vector<Bits> all(65536);
    for (Bits bits = 0; bits < 65536; ++bits) all[bits] = bits;
    Terms terms{.dtype = dtype};
    terms.add(all);
    check(terms);
    std::vector<std::byte> out(all.size() * 2);
    sum_rows(terms.sum(), out.data());
    for (Bits bits = 0; bits < 65536; ++bits) {
      const Bits got = test::load_bits(dtype, out.data() + std::size_t{bits} * 2);
      const Bits want = bits == 0x8000 ? 0 : bits;
      ASSERT_TRUE(test::same_element(dtype, got, want)) << test::describe(dtype, bits);
    }
  }
}

// 1.0 times a weight: the weight itself is rounded.
void check_rounding(DType dtype, float value) {
  const Bits want = round_to(dtype, test::add(0.0F, value));
  // Eight vectors of any instruction set, which are summed at once, one more, and a tail.
  constexpr std::size_t kHidden = 8 * 16 + 17;
  static std::vector<std::byte> ones;
  ones.resize(kHidden * 2);
  for (std::size_t i = 0; i < kHidden; ++i) {
    test::store_bits(dtype, round_to(dtype, 1.0F), ones.data() + i * 2);
  }
  const std::byte* row = ones.data();
  std::byte out[kHidden * 2];
  sum_rows({.rows = {&row, 1}, .weights = &value, .hidden = kHidden, .dtype = dtype}, out);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{8 * 16}, kHidden - 1}) {
    const Bits got = test::load_bits(dtype, out + i * 2);
    ASSERT_TRUE(test::same_element(dtype, got, want))
        << name(dtype) << " of " << value << ": got " << test::describe(dtype, got) << ", want "
        << test::describe(dtype, want);
  }
}

// Every value that lies in the middle of two neighbours, and what is just beside it.
TEST_P(RowKernelsTest, TiesGoToEvenAndTheRestToTheNearest) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const Bits infinity = dtype == DType::bf16 ? 0x7F80 : 0x7C00;
    for (Bits bits = 0; bits < infinity; bits += dtype == DType::bf16 ? 7 : 1) {
      const double low = to_float(dtype, bits);
      const double high = bits + 1 == infinity ? (dtype == DType::bf16 ? 0x1p128 : 65536.0)
                                               : to_float(dtype, bits + 1);
      const auto middle = static_cast<float>((low + high) / 2);
      for (const float value : {middle, std::nextafter(middle, 0.0F),
                                std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
        check_rounding(dtype, value);
        check_rounding(dtype, -value);
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RowKernelsTest, RoundsExtremeValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float smallest = std::numeric_limits<float>::denorm_min();
  const float values[] = {0.0F,
                          -0.0F,
                          infinity,
                          -infinity,
                          smallest,
                          0x1p-126F,
                          0x1p-133F,
                          0x1.8p-134F,
                          0x1p-25F,
                          0x1.000002p-25F,
                          65504.0F,
                          65519.996F,
                          65520.0F,
                          FLT_MAX,
                          0x1.FEFFFEp127F,
                          std::nanf(""),
                          std::bit_cast<float>(0x7F800001U),
                          std::bit_cast<float>(0xFFFFFFFFU)};
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const float value : values) check_rounding(dtype, value);
  }
  Random random(11);
  for (int i = 0; i < 20'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<Bits>(random.next() >> 32));
    check_rounding(DType::bf16, value);
    check_rounding(DType::fp16, value);
    if (HasFatalFailure()) return;
  }
}

Bits random_element(DType dtype, Random& random) {
  if (random.one_in(50))
    return static_cast<Bits>(random.next() >> (dtype == DType::fp32 ? 32 : 48));
  return round_to(dtype, random.uniform() * 4 - 2);
}

TEST_P(RowKernelsTest, SumsAreThoseOfTheModel) {
  Random random(5);
  std::vector<std::size_t> widths{1023, 1024, 1025, 2047, 2048, 2049, 3072};
  for (std::size_t hidden = 1; hidden <= 70; ++hidden) widths.push_back(hidden);
  for (const std::size_t hidden : widths) {
    for (const DType dtype : kTypes) {
      Terms terms{.dtype = dtype};
      const int rows = random.between(1, 12);
      const bool weighted = random.one_in(2);
      const bool grouped = random.one_in(2);
      for (int r = 0; r < rows; ++r) {
        std::vector<Bits> row(hidden);
        for (Bits& bits : row) bits = random_element(dtype, random);
        terms.add(row);
        if (weighted) terms.weights.push_back(random.uniform() * 3 - 1);
        if (grouped) terms.ends.push_back(r + 1 == rows || random.one_in(3) ? 1 : 0);
      }
      check(terms);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RowKernelsTest, NoRowsGivePositiveZero) {
  for (const DType dtype : kTypes) {
    Terms terms{.dtype = dtype, .hidden = 77};
    check(terms);
    std::vector<std::byte> out(77 * size_of(dtype), kGuard);
    sum_rows(terms.sum(), out.data());
    EXPECT_EQ(std::count(out.begin(), out.end(), std::byte{0}), std::ssize(out)) << name(dtype);
  }
}

// 2^24 + 1 + 1: one by one each 1 is lost; as a partial sum of their own they are not.
TEST_P(RowKernelsTest, PartialSumsAreRoundedByThemselves) {
  const auto of = [](float value) { return std::vector<Bits>(9, std::bit_cast<Bits>(value)); };
  Terms terms{.dtype = DType::fp32};
  for (const float value : {0x1p24F, 1.0F, 1.0F}) terms.add(of(value));
  EXPECT_EQ(std::bit_cast<float>(terms.expected(0)), 0x1p24F);
  check(terms);
  terms.ends = {1, 0, 1};
  EXPECT_EQ(std::bit_cast<float>(terms.expected(0)), 0x1p24F + 2);
  check(terms);
}

// A fused multiply-add would keep what the product's rounding drops.
TEST_P(RowKernelsTest, ProductsAreRoundedBeforeTheyAreAdded) {
  const float x = 1.0F + 0x1p-12F;
  const float square = test::multiply(x, x);
  Terms terms{.dtype = DType::fp32};
  terms.add(std::vector<Bits>(9, std::bit_cast<Bits>(-square)));
  terms.add(std::vector<Bits>(9, std::bit_cast<Bits>(x)));
  terms.weights = {1.0F, x};
  ASSERT_EQ(terms.expected(0), 0U);
  ASSERT_NE(std::fma(x, x, -square), 0.0F);
  check(terms);
}

TEST_P(RowKernelsTest, BothPoliciesGiveTheSameBits) {
  constexpr std::size_t kBytes = 4100;
  Random random(9);
  Terms terms{.dtype = DType::bf16};
  for (int r = 0; r < 3; ++r) {
    std::vector<Bits> row(kBytes / 2);
    for (Bits& bits : row) bits = random_element(terms.dtype, random);
    terms.add(row);
  }
  Output near(round_up(kBytes, 64));
  Output far(round_up(kBytes, 64));
  sum_rows_with(Store::near, terms.sum(), near.data());
  sum_rows_with(Store::far, terms.sum(), far.data());
  store_fence();
  EXPECT_EQ(std::memcmp(near.data(), far.data(), kBytes), 0);
}

}  // namespace
}  // namespace ubep
