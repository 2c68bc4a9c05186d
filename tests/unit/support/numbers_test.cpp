// The reference's own arithmetic, against values worked out by hand.
#include "support/numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ubep::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(NumbersTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(round_to(DType::bf16, 1.0F), 0x3f80U);
  EXPECT_EQ(round_to(DType::bf16, 1.00390625F), 0x3f80U);  // 1 + 2^-8: tie, to the even 1
  EXPECT_EQ(round_to(DType::bf16, 1.01171875F), 0x3f82U);  // 1 + 3 * 2^-8: tie, up to even
  EXPECT_EQ(round_to(DType::bf16, 1.00390637F), 0x3f81U);  // just above the tie
  EXPECT_EQ(round_to(DType::bf16, -0.0F), 0x8000U);
  EXPECT_EQ(round_to(DType::bf16, kInfinity), 0x7f80U);
  EXPECT_EQ(round_to(DType::bf16, std::numeric_limits<float>::max()), 0x7f80U);
  EXPECT_TRUE(is_nan(DType::bf16, round_to(DType::bf16, std::nanf(""))));
}

TEST(NumbersTest, Fp16RoundsToNearestEven) {
  EXPECT_EQ(round_to(DType::fp16, 1.0F), 0x3c00U);
  EXPECT_EQ(round_to(DType::fp16, 1.00048828125F), 0x3c00U);  // 1 + 2^-11: tie, to the even 1
  EXPECT_EQ(round_to(DType::fp16, 1.00146484375F), 0x3c02U);  // 1 + 3 * 2^-11: tie, up to even
  EXPECT_EQ(round_to(DType::fp16, -2.0F), 0xc000U);
  EXPECT_EQ(round_to(DType::fp16, 65504.0F), 0x7bffU);
  EXPECT_EQ(round_to(DType::fp16, 65519.0F), 0x7bffU);
  EXPECT_EQ(round_to(DType::fp16, 65520.0F), 0x7c00U);  // tie with the next step, infinity
  EXPECT_EQ(round_to(DType::fp16, -kInfinity), 0xfc00U);
  EXPECT_EQ(round_to(DType::fp16, -0.0F), 0x8000U);
}

TEST(NumbersTest, Fp16Denormals) {
  EXPECT_EQ(round_to(DType::fp16, std::ldexp(1.0F, -14)), 0x0400U);  // the smallest normal
  EXPECT_EQ(round_to(DType::fp16, std::ldexp(1.0F, -24)), 0x0001U);
  EXPECT_EQ(round_to(DType::fp16, std::ldexp(1.0F, -25)), 0x0000U);  // tie, to the even 0
  EXPECT_EQ(round_to(DType::fp16, std::ldexp(1.5F, -25)), 0x0001U);
  EXPECT_EQ(round_to(DType::fp16, std::ldexp(1023.75F, -24)), 0x0400U);  // carries into normal
  EXPECT_EQ(to_float(DType::fp16, 0x8003), -std::ldexp(3.0F, -24));
}

TEST(NumbersTest, EveryHalfSurvivesTheWayThere) {
  for (Bits bits = 0; bits < 0x10000; ++bits) {
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      const Bits back = round_to(dtype, to_float(dtype, bits));
      EXPECT_TRUE(same_element(dtype, bits, back)) << name(dtype) << " " << bits;
    }
  }
}

TEST(NumbersTest, NanComparesAsNanAndZerosDiffer) {
  EXPECT_TRUE(same_element(DType::fp32, 0x7fc00000, 0xffc00001));
  EXPECT_FALSE(same_element(DType::fp32, 0x7fc00000, 0x7f800000));
  EXPECT_FALSE(same_element(DType::bf16, 0x0000, 0x8000));
}

TEST(NumbersTest, MultiplyAndAddRoundSeparately) {
  const float a = 1.0F + std::ldexp(1.0F, -12);
  // a * a = 1 + 2^-11 + 2^-24; the last term is lost before the addition.
  EXPECT_EQ(add(multiply(a, a), -(1.0F + std::ldexp(1.0F, -11))), 0.0F);
}

TEST(NumbersTest, DescribesBitsAndValue) {
  EXPECT_EQ(describe(DType::bf16, 0x3f80), "0x3f80 (1)");
  EXPECT_EQ(describe(DType::fp32, 0xc0000000), "0xc0000000 (-2)");
}

}  // namespace
}  // namespace ubep::test
