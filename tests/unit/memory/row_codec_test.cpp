// Quantised rows against a scalar reference and golden rows, once per instruction set.
#include "memory/row_codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/math.hpp"
#include "memory/copy.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"
#include "support/row_codec_golden.hpp"
#include "support/row_codec_reference.hpp"
#include "support/vector_targets.hpp"

namespace ubep {
namespace {

using test::Bits;
using test::Random;
using Bytes = std::vector<std::byte>;

constexpr std::byte kGuard{0xA5};
constexpr DType kTypes[] = {DType::bf16, DType::fp16, DType::fp32};
constexpr Quant kQuants[] = {Quant::fp8, Quant::fp8_pow2, Quant::fp8_ue8m0, Quant::int8,
                             Quant::mxfp8};
constexpr std::size_t kWidths[] = {1, 2, 31, 32, 33, 127, 128, 129, 500, 2048, 7168};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Bytes elements_of(DType dtype, const std::vector<float>& values) {
  Bytes x(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    test::store_bits(dtype, test::round_to(dtype, values[i]), &x[i * size_of(dtype)]);
  }
  return x;
}

Bytes encoded(Quant quant, DType dtype, const Bytes& x) {
  const std::size_t hidden = x.size() / size_of(dtype);
  Bytes row(RowFormat::of(quant, hidden).bytes());
  encode_row(quant, {x.data(), hidden, dtype}, row.data());
  return row;
}

// Both ways, from and to odd addresses where that is allowed, and nothing beside the row is
// touched.
void check_encoding(Quant quant, DType dtype, const Bytes& x) {
  SCOPED_TRACE(testing::Message() << name(quant) << " of " << name(dtype));
  const std::size_t hidden = x.size() / size_of(dtype);
  const Bytes want = test::reference_encode(quant, dtype, x.data(), hidden);
  ASSERT_EQ(RowFormat::of(quant, hidden).bytes(), want.size());
  Bytes odd(x.size() + 1);
  std::memcpy(odd.data() + 1, x.data(), x.size());
  const std::size_t room = round_up(want.size(), 64);
  Bytes plain(room + 2, kGuard);
  encode_row_with(Store::near, quant, {odd.data() + 1, hidden, dtype}, plain.data() + 1);
  Bytes area(room + 192, kGuard);
  std::byte* streamed = &area[64 + (64 - reinterpret_cast<std::uintptr_t>(area.data()) % 64) % 64];
  encode_row_with(Store::far, quant, {odd.data() + 1, hidden, dtype}, streamed);
  store_fence();
  EXPECT_EQ(plain[0], kGuard);
  EXPECT_EQ(plain[1 + want.size()], kGuard);
  EXPECT_EQ(streamed[-1], kGuard);
  EXPECT_EQ(streamed[room], kGuard);
  for (const std::byte* row : std::initializer_list<const std::byte*>{plain.data() + 1, streamed}) {
    const auto at = std::mismatch(want.begin(), want.end(), row).first - want.begin();
    ASSERT_EQ(at, std::ssize(want))
        << (row == streamed ? "streamed, " : "") << "byte " << at << " of a row of " << hidden
        << ": got " << static_cast<int>(row[at]) << ", want "
        << static_cast<int>(want[static_cast<std::size_t>(at)]);
  }
}

void check_decoding(Quant quant, const Bytes& row, std::size_t hidden) {
  const std::vector<float> want = test::reference_decode(quant, row.data(), hidden);
  for (const DType dtype : kTypes) {
    Bytes odd(row.size() + 1);
    std::memcpy(odd.data() + 1, row.data(), row.size());
    Bytes out(hidden * size_of(dtype) + 2, kGuard);
    decode_row(quant, odd.data() + 1, hidden, dtype, out.data() + 1);
    ASSERT_EQ(out.front(), kGuard);
    ASSERT_EQ(out.back(), kGuard);
    for (std::size_t i = 0; i < hidden; ++i) {
      const Bits got = test::load_bits(dtype, out.data() + 1 + i * size_of(dtype));
      Bits expected = test::round_to(dtype, want[i]);
      if (std::isnan(want[i])) expected = test::round_to(dtype, kNan);  // one NaN, without a sign
      ASSERT_EQ(got, expected) << name(quant) << " to " << name(dtype) << ", element " << i
                               << " of " << hidden << ": got " << test::describe(dtype, got)
                               << ", want " << test::describe(dtype, expected);
    }
  }
}

// Decoded as fp32.
std::vector<float> there_and_back(Quant quant, DType dtype, const Bytes& x) {
  std::vector<float> out(x.size() / size_of(dtype));
  decode_row(quant, encoded(quant, dtype, x).data(), out.size(), DType::fp32,
             reinterpret_cast<std::byte*>(out.data()));
  return out;
}

float normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(1 - static_cast<double>(random.uniform())));
  return static_cast<float>(radius *
                            std::cos(6.283185307179586 * static_cast<double>(random.uniform())));
}

class RowCodecTest : public test::OnEachTarget {
 protected:
  static float scale(const Bytes& row) {  // the last one of fp32
    float value = 0;
    std::memcpy(&value, &row[row.size() - 4], 4);
    return value;
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, RowCodecTest, test::each_target(), test::TargetName());

TEST(RowFormatTest, ScalesFollowTheValues) {
  const auto is = [](Quant quant, std::size_t hidden, const RowFormat& want) {
    const RowFormat got = RowFormat::of(quant, hidden);
    EXPECT_EQ(got.scale_block, want.scale_block) << name(quant);
    EXPECT_EQ(got.num_scales, want.num_scales) << name(quant);
    EXPECT_EQ(got.scale_bytes, want.scale_bytes) << name(quant);
    EXPECT_EQ(got.scale_offset, want.scale_offset) << name(quant);
  };
  is(Quant::fp8, 7168, {128, 56, 4, 7168});
  is(Quant::fp8_pow2, 129, {128, 2, 4, 132});
  is(Quant::fp8_ue8m0, 129, {128, 2, 1, 129});
  is(Quant::int8, 2881, {2881, 1, 4, 2884});
  is(Quant::mxfp8, 2881, {32, 91, 1, 2881});
  is(Quant::none, 100, {0, 0, 0, 0});
  EXPECT_EQ(RowFormat::of(Quant::fp8, 7168).bytes(), 7168U + 56 * 4);
  EXPECT_EQ(RowFormat::of(Quant::int8, 1).bytes(), 8U);
  EXPECT_EQ(RowFormat::of(Quant::mxfp8, 2880).bytes(), 2970U);
}

Bytes from_digits(std::string_view digits) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  Bytes bytes(digits.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(digit(digits[2 * i]) * 16 + digit(digits[2 * i + 1]));
  }
  return bytes;
}

TEST_P(RowCodecTest, GoldenRowsComeOut) {
  for (const test::GoldenRow& golden : test::kGoldenRows) {
    const Bytes x = from_digits(golden.x);
    const Bytes want = from_digits(golden.row);
    EXPECT_EQ(encoded(golden.quant, golden.dtype, x), want)
        << name(golden.quant) << " of " << name(golden.dtype) << ", " << x.size() << " bytes";
    EXPECT_EQ(test::reference_encode(golden.quant, golden.dtype, x.data(),
                                     x.size() / size_of(golden.dtype)),
              want)
        << "the reference";
  }
}

// In order, so that a block has numbers of one size; and mixed.
TEST_P(RowCodecTest, EverySixteenBitValue) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Bits factor : {1U, 40503U}) {
      Bytes x(std::size_t{65536} * 2);
      for (Bits i = 0; i < 65536; ++i) {
        test::store_bits(dtype, i * factor & 0xFFFF, &x[std::size_t{i} * 2]);
      }
      for (const Quant quant : kQuants) check_encoding(quant, dtype, x);
      if (HasFatalFailure()) return;
    }
  }
}

// Scale 1: every value in the middle of two neighbours, and what is just beside it.
TEST_P(RowCodecTest, TiesGoToEvenAndTheRestToTheNearest) {
  std::vector<float> values;
  const auto add = [&](double middle) {
    const auto value = static_cast<float>(middle);
    for (const float v : {value, std::nextafter(value, 0.0F), std::nextafter(value, kInf)}) {
      for (const float sign : {1.0F, -1.0F}) {
        if (values.size() % 32 == 0) values.push_back(448);  // makes every scale 1
        values.push_back(sign * v);
      }
    }
  };
  for (std::uint8_t code = 0; code < 126; ++code) {
    const auto next = static_cast<std::uint8_t>(code + 1);
    add(test::e4m3_value(code));
    add((test::e4m3_value(code) + test::e4m3_value(next)) / 2);
  }
  const Bytes x = elements_of(DType::fp32, values);
  for (const Quant quant : kQuants) check_encoding(quant, DType::fp32, x);
  EXPECT_EQ(scale(encoded(Quant::fp8, DType::fp32, x)), 1.0F);

  values.assign(1, 127.0F);
  for (int i = -127; i < 127; ++i) {
    const float middle = static_cast<float>(i) + 0.5F;
    for (const float v : {middle, std::nextafter(middle, -kInf), std::nextafter(middle, kInf)}) {
      values.push_back(v);
    }
  }
  check_encoding(Quant::int8, DType::fp32, elements_of(DType::fp32, values));
}

// The scale of MX leaves 448..512 to saturation.
TEST_P(RowCodecTest, MxSaturates) {
  for (const float value : {448.0F, 463.9F, 464.0F, 464.1F, 480.0F, 511.99997F}) {
    const Bytes row = encoded(Quant::mxfp8, DType::fp32, elements_of(DType::fp32, {value, -value}));
    EXPECT_EQ(row, (Bytes{std::byte{0x7E}, std::byte{0xFE}, std::byte{127}})) << value;
  }
  const Bytes row = encoded(Quant::mxfp8, DType::fp32, elements_of(DType::fp32, {512.0F}));
  EXPECT_EQ(row, (Bytes{std::byte{0x78}, std::byte{128}}));
}

// Now and then an element of any bits.
Bytes random_row(DType dtype, std::size_t hidden, Random& random) {
  Bytes x(hidden * size_of(dtype));
  const int wild = random.between(1, 400);
  const float size = std::ldexp(1.0F, random.between(-20, 12));
  for (std::size_t i = 0; i < hidden; ++i) {
    Bits bits = test::round_to(dtype, normal(random) * size);
    if (random.one_in(wild)) bits = static_cast<Bits>(random.next() >> 32);
    test::store_bits(dtype, bits, &x[i * size_of(dtype)]);
  }
  return x;
}

TEST_P(RowCodecTest, RowsAreThoseOfTheReference) {
  Random random(3);
  for (const std::size_t hidden : kWidths) {
    for (const DType dtype : kTypes) {
      for (const Quant quant : kQuants) {
        for (std::size_t round = 0; round < 1 + 300 / hidden; ++round) {
          const Bytes x = random_row(dtype, hidden, random);
          check_encoding(quant, dtype, x);
          check_decoding(quant, encoded(quant, dtype, x), hidden);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(RowCodecTest, AnyFp32ComesOutAsInTheReference) {
  Random random(4);
  Bytes x(std::size_t{1} << 16);
  for (std::size_t i = 0; i < x.size(); i += 4) {
    const Bits bits = static_cast<Bits>(random.next() >> 32);
    test::store_bits(DType::fp32, bits, &x[i]);
  }
  for (const Quant quant : kQuants) check_encoding(quant, DType::fp32, x);
}

// Scales at either end of fp32, and subnormal elements.
TEST_P(RowCodecTest, EveryPowerOfTwo) {
  for (int power = -149; power <= 127; ++power) {
    for (const float times : {1.0F, 1.75F, 1.7500001F, 1.9999999F}) {
      const float most = std::ldexp(times, power);
      const Bytes x = elements_of(
          DType::fp32, {most, most / 2, -most / 3, most / 1000, most / 32768, most / 65536, 0.0F});
      for (const Quant quant : kQuants) check_encoding(quant, DType::fp32, x);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RowCodecTest, ZerosGiveZerosAndKeepTheirSign) {
  for (const DType dtype : kTypes) {
    std::vector<float> values(200, 0.0F);
    values[7] = values[150] = -0.0F;
    const Bytes x = elements_of(dtype, values);
    for (const Quant quant : kQuants) {
      const Bytes row = encoded(quant, dtype, x);
      const auto minus = std::byte{quant == Quant::int8 ? std::uint8_t{0} : std::uint8_t{0x80}};
      for (std::size_t i = 0; i < 200; ++i) {
        ASSERT_EQ(row[i], (i == 7 || i == 150) ? minus : std::byte{0}) << name(quant);
      }
      const std::vector<float> out = there_and_back(quant, dtype, x);
      EXPECT_EQ(std::count(out.begin(), out.end(), 0.0F), 200) << name(quant);
      EXPECT_EQ(std::signbit(out[150]), quant != Quant::int8) << name(quant);
    }
    EXPECT_EQ(scale(encoded(Quant::fp8, dtype, x)), 1e-4F / 448);
    EXPECT_EQ(scale(encoded(Quant::fp8_pow2, dtype, x)), 0x1p-22F);
    EXPECT_EQ(encoded(Quant::fp8_ue8m0, dtype, x).back(), std::byte{127 - 22});
    EXPECT_EQ(scale(encoded(Quant::int8, dtype, x)), 1e-10F / 127);
    EXPECT_EQ(encoded(Quant::mxfp8, dtype, x).back(), std::byte{0});
  }
}

TEST_P(RowCodecTest, BelowTheFloorTheScaleIsThatOfTheFloor) {
  const Bytes x = elements_of(DType::fp32, {9e-5F, -1e-5F});
  EXPECT_EQ(scale(encoded(Quant::fp8, DType::fp32, x)), 1e-4F / 448);
  EXPECT_EQ(scale(encoded(Quant::fp8_pow2, DType::fp32, x)), 0x1p-22F);
  EXPECT_EQ(scale(encoded(Quant::int8, DType::fp32, x)), 9e-5F / 127);
  const Bytes less = elements_of(DType::fp32, {9e-11F});
  EXPECT_EQ(scale(encoded(Quant::int8, DType::fp32, less)), 1e-10F / 127);
  EXPECT_NEAR(there_and_back(Quant::int8, DType::fp32, less)[0], 9e-11F, 4e-13F);
}

// The rest of the block is what it is without them.
TEST_P(RowCodecTest, NotANumberAndInfinityBecomeNan) {
  for (const DType dtype : kTypes) {
    std::vector<float> values(300);
    std::iota(values.begin(), values.end(), -150.0F);
    std::vector<float> others = values;
    for (const std::size_t i : {3U, 140U, 299U}) values[i] = 0.0F;
    others[3] = kNan;
    others[140] = kInf;
    others[299] = -kInf;
    for (const Quant quant : {Quant::fp8, Quant::fp8_pow2, Quant::fp8_ue8m0, Quant::mxfp8}) {
      Bytes want = encoded(quant, dtype, elements_of(dtype, values));
      for (const std::size_t i : {3U, 140U, 299U}) want[i] = std::byte{0x7F};
      const Bytes x = elements_of(dtype, others);
      EXPECT_EQ(encoded(quant, dtype, x), want) << name(quant);
      const std::vector<float> out = there_and_back(quant, dtype, x);
      EXPECT_EQ(std::count_if(out.begin(), out.end(), [](float v) { return std::isnan(v); }), 3);
    }
    const Bytes all = encoded(Quant::fp8, dtype, elements_of(dtype, {kNan, kInf}));
    EXPECT_EQ(all[0], std::byte{0x7F});
    EXPECT_EQ(scale(all), 1e-4F / 448);
  }
}

TEST_P(RowCodecTest, OneElementThatIsNotFiniteMakesAnInt8RowNan) {
  for (const DType dtype : kTypes) {
    for (const float bad : {kNan, kInf, -kInf}) {
      std::vector<float> values(1500, 2.0F);
      values[1300] = bad;
      const Bytes x = elements_of(dtype, values);
      check_encoding(Quant::int8, dtype, x);
      const Bytes row = encoded(Quant::int8, dtype, x);
      EXPECT_EQ(std::count(row.begin(), row.begin() + 1500, std::byte{0}), 1500);
      EXPECT_EQ(std::bit_cast<Bits>(scale(row)), 0x7FC00000U);
      const std::vector<float> out = there_and_back(Quant::int8, dtype, x);
      EXPECT_EQ(std::count_if(out.begin(), out.end(), [](float v) { return std::isnan(v); }), 1500);
    }
  }
}

TEST_P(RowCodecTest, EveryByteDecodesWithEveryScale) {
  for (const Quant quant : kQuants) {
    const RowFormat format = RowFormat::of(quant, 256);
    Bytes row(format.bytes());
    for (std::size_t i = 0; i < 256; ++i) row[i] = static_cast<std::byte>(i);
    for (int power = 0; power < 256; ++power) {
      for (std::size_t i = 0; i < format.num_scales; ++i) {
        std::byte* to = &row[format.scale_offset + i * format.scale_bytes];
        *to = static_cast<std::byte>(power);
        // Any sign, fraction and exponent; infinity and NaN are among them.
        const Bits bits = static_cast<Bits>(power) * 0x01010101U + (power % 2 == 0 ? 0x800000U : 0);
        if (format.scale_bytes == 4) std::memcpy(to, &bits, 4);
      }
      check_decoding(quant, row, 256);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RowCodecTest, ErrorsStayWithinTheFormat) {
  Random random(6);
  for (const DType dtype : kTypes) {
    for (const Quant quant : kQuants) {
      std::vector<float> values(7168);
      for (float& v : values) v = test::to_float(dtype, test::round_to(dtype, normal(random)));
      const std::vector<float> out = there_and_back(quant, dtype, elements_of(dtype, values));
      for (std::size_t i = 0; i < values.size(); ++i) {
        // Half a unit: of 3 bits, or of the smallest, here below 2^-6 of an amax below 8; of int8.
        const float relative = quant == Quant::mxfp8 ? 0.125F : 0.0625F;
        const float bound = quant == Quant::int8 ? 8.0F / 254
                                                 : std::max(std::fabs(values[i]) * relative,
                                                            8.0F / 448 * 2 * 0x1p-10F);
        ASSERT_LE(std::fabs(out[i] - values[i]), bound * 1.000001F)
            << name(quant) << " of " << name(dtype) << ": " << values[i];
      }
    }
  }
}

// 1 - 2 * sum(a * b) / sum(a^2 + b^2), as expert-parallel libraries compare.
double difference(const std::vector<float>& x, const std::vector<float>& y) {
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = static_cast<double>(x[i]) + 1;
    const double b = static_cast<double>(y[i]) + 1;
    products += a * b;
    squares += a * a + b * b;
  }
  return 1 - 2 * products / squares;
}

TEST_P(RowCodecTest, NormalNumbersComeBackAlike) {
  Random random(7);
  for (const DType dtype : kTypes) {
    for (const Quant quant : kQuants) {
      for (int row = 0; row < 4; ++row) {
        std::vector<float> values(7168);
        for (float& v : values) v = test::to_float(dtype, test::round_to(dtype, normal(random)));
        const std::vector<float> out = there_and_back(quant, dtype, elements_of(dtype, values));
        EXPECT_LT(difference(values, out), quant == Quant::mxfp8 ? 2e-3 : 9e-4) << name(quant);
        EXPECT_GT(difference(values, out), 1e-7) << name(quant);
      }
    }
  }
}

// The most scales that are staged, and one more.
TEST_P(RowCodecTest, VeryWideRowsAreStreamedToo) {
  Random random(8);
  for (const std::size_t hidden : {std::size_t{131'072}, std::size_t{131'073}}) {
    const Bytes x = random_row(DType::bf16, hidden, random);
    for (const Quant quant : {Quant::fp8, Quant::mxfp8}) {
      const Bytes want = encoded(quant, DType::bf16, x);
      Bytes area(want.size() + 128);
      std::byte* out = &area[(64 - reinterpret_cast<std::uintptr_t>(area.data()) % 64) % 64];
      encode_row_streaming(quant, {x.data(), hidden, DType::bf16}, out);
      store_fence();
      EXPECT_TRUE(std::equal(want.begin(), want.end(), out)) << name(quant) << ", " << hidden;
    }
  }
}

}  // namespace
}  // namespace ubep
