// Quantised rows and payloads where they enter and leave the library.
#include "ubep/quantization.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/row_codec_reference.hpp"
#include "ubep/bootstrap.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {
namespace {

constexpr int kTokens = 3;
constexpr int kHidden = 200;
constexpr Quant kFormats[] = {Quant::fp8, Quant::fp8_pow2, Quant::fp8_ue8m0, Quant::int8,
                              Quant::mxfp8};

void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    }
  }
}

std::vector<float> numbers(int seed) {
  std::vector<float> x;
  for (int i = 0; i < kTokens * kHidden; ++i) {
    x.push_back(static_cast<float>((i * 37 + seed) % 251 - 125) / 16);
  }
  return x;
}

// One rank with two experts; token t goes to expert t % 2.
class Alone {
 public:
  explicit Alone(Store store = Store::near)
      : comm(Communicator::create(ThreadGroup(1).bootstrap(0), options(store))), x(numbers(1)) {}

  static CommunicatorOptions options(Store store) {
    CommunicatorOptions o;
    o.num_experts = 2;
    o.max_tokens = kTokens;
    o.max_hidden = kHidden;
    o.max_dtype = DType::fp32;
    o.max_topk = 1;
    o.max_payload = 24;
    o.store = store;
    return o;
  }
  ConstRows rows() const { return {x.data(), kTokens, kHidden, DType::fp32}; }
  Routing routing() const { return {idx, weights, 1}; }

  Communicator comm;
  std::vector<float> x;
  std::vector<std::int32_t> idx = {0, 1, 0};
  std::vector<float> weights = {1, 1, 1};
  std::vector<std::uint16_t> adapters = {7, 8, 9};
};

TEST(QuantizationTest, RowsAreThoseOfTheReference) {
  const std::vector<float> x = numbers(2);
  for (const Quant quant : kFormats) {
    std::vector<std::byte> row(static_cast<std::size_t>(quantized_row_bytes(quant, kHidden)));
    quantize_row(quant, x.data(), DType::fp32, kHidden, row.data());
    const auto* bytes = reinterpret_cast<const std::byte*>(x.data());
    EXPECT_EQ(row, reference_encode(quant, DType::fp32, bytes, kHidden)) << name(quant);
    std::vector<float> back(kHidden);
    dequantize_row(quant, row.data(), DType::fp32, kHidden, back.data());
    EXPECT_EQ(back, reference_decode(quant, row.data(), kHidden)) << name(quant);
  }
}

TEST(QuantizationTest, ReceivedRowsDescribeThemselves) {
  for (const Store store : {Store::near, Store::far}) {
    for (const Quant quant : kFormats) {
      Alone alone(store);
      Handle handle;
      const DispatchOptions options{.layout = Layout::expert_major, .quant = quant};
      const Payload payload{"adapter", alone.adapters.data(), 2};
      ASSERT_TRUE(
          alone.comm
              .dispatch({alone.rows(), std::span(&payload, 1)}, alone.routing(), options, handle)
              .ok());
      const Received& received = handle.received();
      EXPECT_EQ(received.quant, quant);
      EXPECT_EQ(received.dtype, DType::fp32);
      const ScalePlace scales = scale_place(quant, kHidden);
      EXPECT_EQ(received.scales.offset, scales.offset);
      EXPECT_EQ(received.scales.count, scales.count);
      ASSERT_EQ(received.payloads.size(), 1U);
      EXPECT_EQ(received.payloads[0].name, "adapter");
      EXPECT_EQ(received.payloads[0].offset % 8, 0);
      EXPECT_EQ(received.row_bytes, received.payloads[0].offset + 2);
      // Expert 0 has tokens 0 and 2.
      std::uint16_t adapter = 0;
      std::memcpy(&adapter, received.row(1) + received.payloads[0].offset, 2);
      EXPECT_EQ(adapter, 9);
      std::vector<std::byte> row(static_cast<std::size_t>(quantized_row_bytes(quant, kHidden)));
      quantize_row(quant, alone.x.data() + 2 * kHidden, DType::fp32, kHidden, row.data());
      EXPECT_EQ(std::memcmp(row.data(), received.row(1), row.size()), 0) << name(quant);
      EXPECT_EQ(handle.expert_output().dtype, DType::fp32);
      alone.comm.release(handle);
    }
  }
}

TEST(QuantizationTest, ScalesAreCopiedInEitherOrder) {
  Alone alone;
  Handle handle;
  const DispatchOptions options{.layout = Layout::expert_major, .quant = Quant::fp8};
  ASSERT_TRUE(alone.comm.dispatch(alone.rows(), alone.routing(), options, handle).ok());
  const Received& received = handle.received();
  ASSERT_EQ(received.scales.count, 2);
  ASSERT_EQ(received.num_rows, kTokens);
  std::vector<float> by_row(6);
  std::vector<float> by_column(6);
  copy_scales(received, 0, 3, {by_row.data(), 8, 4});
  copy_scales(received, 0, 3, {by_column.data(), 4, 12});
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t b = 0; b < 2; ++b) {
      float scale = 0;
      std::memcpy(&scale,
                  received.row(static_cast<std::int64_t>(i)) + received.scales.offset + 4 * b, 4);
      EXPECT_EQ(by_row[2 * i + b], scale);
      EXPECT_EQ(by_column[3 * b + i], scale);
    }
  }
  expect_error(ErrorCode::invalid_argument, {"first is 1", "count is 3", "3 received"}, [&] {
    copy_scales(received, 1, 3, {by_row.data(), 8, 4});
  });
  alone.comm.release(handle);
}

TEST(QuantizationTest, WrongUseIsNamed) {
  std::vector<std::byte> row(1024);
  const auto invalid = ErrorCode::invalid_argument;
  expect_error(invalid, {"quant", "none"}, [&] { (void)quantized_row_bytes(Quant::none, 8); });
  expect_error(invalid, {"hidden", "0"}, [&] { (void)quantized_row_bytes(Quant::fp8, 0); });
  expect_error(invalid, {"dtype", "u8"},
               [&] { quantize_row(Quant::fp8, row.data(), DType::u8, 8, row.data() + 512); });
  Alone alone;
  Handle handle;
  const auto dispatch = [&](const Input& in, const DispatchOptions& options) {
    return [&alone, &handle, in, options] {
      (void)alone.comm.dispatch(in, alone.routing(), options, handle);
    };
  };
  const DispatchOptions fp8{.path = Path::pull, .quant = Quant::fp8};
  DispatchOptions in_place = fp8;
  in_place.in_place = true;
  expect_error(invalid, {"in_place", "quant"}, dispatch(alone.rows(), in_place));
  const ConstRows bytes{alone.x.data(), kTokens, kHidden, DType::u8};
  expect_error(invalid, {"quant", "bf16"}, dispatch(bytes, fp8));
  Payload payload{"scales", alone.adapters.data(), 25};
  const std::span<const Payload> one(&payload, 1);
  expect_error(invalid, {"payloads", "32", "24", "max_payload"},
               dispatch({alone.rows(), one}, fp8));
  payload = {"scales", alone.adapters.data(), 0};
  expect_error(invalid, {"'scales'", "0", "1.."}, dispatch({alone.rows(), one}, fp8));
  payload = {"scales", nullptr, 2};
  expect_error(invalid, {"'scales'", "no data"}, dispatch({alone.rows(), one}, fp8));
  payload = {"scales", alone.adapters.data(), 2, 1};
  expect_error(invalid, {"'scales'", "stride_bytes 1", "2"}, dispatch({alone.rows(), one}, fp8));
  Rows x;
  ASSERT_TRUE(alone.comm.input(kTokens, kHidden, DType::fp32, x).ok());
  expect_error(invalid, {"input()", "quant"}, dispatch(x, fp8));
  EXPECT_FALSE(handle.holds_lease());
}

TEST(QuantizationTest, ARepeatedDispatchHasTheSamePayloads) {
  Alone alone;
  Handle first;
  Handle second;
  const Payload payload{"adapter", alone.adapters.data(), 2};
  const std::span<const Payload> one(&payload, 1);
  ASSERT_TRUE(alone.comm.dispatch({alone.rows(), one}, alone.routing(), {}, first).ok());
  expect_error(ErrorCode::invalid_argument, {"0 payloads", "1", "cached"},
               [&] { (void)alone.comm.dispatch(alone.rows(), first, second); });
  const Payload other{"adapter", alone.adapters.data(), 4};
  expect_error(ErrorCode::invalid_argument, {"'adapter'", "4", "2"}, [&] {
    (void)alone.comm.dispatch({alone.rows(), std::span(&other, 1)}, first, second);
  });
  EXPECT_TRUE(alone.comm.dispatch({alone.rows(), one}, first, second).ok());
  alone.comm.release(first);
  alone.comm.release(second);
}

// Rows of the caller's own format come back as what it computes.
TEST(QuantizationTest, BytesGoThereAndFloatsComeBack) {
  Alone alone;
  Handle handle;
  const ConstRows bytes{alone.x.data(), kTokens, kHidden, DType::u8};
  ASSERT_TRUE(
      alone.comm.dispatch(bytes, alone.routing(), {.layout = Layout::expert_major}, handle).ok());
  EXPECT_EQ(std::memcmp(handle.received().row(1),
                        reinterpret_cast<const std::byte*>(alone.x.data()) + 2 * kHidden, kHidden),
            0);
  std::vector<float> y = {1, 2, 3};  // one column; rows in the order of tokens 0, 2, 1
  std::vector<float> out(3);
  expect_error(ErrorCode::invalid_argument, {"out", "u8"}, [&] {
    (void)alone.comm.combine(handle, {.out = {out.data(), 3, kHidden, DType::u8}});
  });
  ASSERT_TRUE(alone.comm
                  .combine(handle, {.out = {out.data(), 3, 1, DType::fp32},
                                    .y = ConstRows{y.data(), 3, 1, DType::fp32}})
                  .ok());
  EXPECT_EQ(out, (std::vector<float>{1, 3, 2}));
}

}  // namespace
}  // namespace ubep::test
