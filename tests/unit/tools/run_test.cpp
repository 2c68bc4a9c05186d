#include "tools/ubep/run.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tools/ubep/input_error.hpp"
#include "tools/ubep/random.hpp"
#include "tools/ubep/safetensors.hpp"

namespace ubep::tools {
namespace {

namespace fs = std::filesystem;

// Input tensors of a small layer, and the file they are written to.
class RunFileTest : public ::testing::Test {
 protected:
  RunFileTest() {
    folder_ = fs::temp_directory_path() / ("ubep-run-test-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    options_.input = folder_ / "x.safetensors";
    options_.output = folder_ / "y.safetensors";
    options_.ranks = 3;
    Random random(7);
    for (float& value : x_) value = static_cast<float>(random.unit() * 4 - 2);
    for (std::int32_t& e : idx_) e = static_cast<std::int32_t>(random.below(kExperts)) - 1;
    for (float& weight : weights_) weight = static_cast<float>(random.unit());
  }
  ~RunFileTest() override { fs::remove_all(folder_); }

  template <class T>
  static std::span<const std::byte> bytes(const std::vector<T>& values) {
    return std::as_bytes(std::span(values));
  }

  void write(std::vector<TensorView> more = {}) {
    std::vector<TensorView> tensors = {
        {"x", FileDType::f32, {kTokens, kHidden}, bytes(x_)},
        {"topk_idx", FileDType::i32, {kTokens, kTopk}, bytes(idx_)},
        {"topk_weights", FileDType::f32, {kTokens, kTopk}, bytes(weights_)}};
    tensors.insert(tensors.end(), more.begin(), more.end());
    write_safetensors(options_.input, tensors);
  }

  std::vector<float> result() {
    const SafetensorsFile file(options_.output);
    EXPECT_EQ(file.info("y").shape, (std::vector<std::uint64_t>{kTokens, kHidden}));
    EXPECT_EQ(file.info("y").dtype, FileDType::f32);
    const auto raw = file.read("y");
    std::vector<float> y(raw.size() / sizeof(float));
    std::memcpy(y.data(), raw.data(), raw.size());
    return y;
  }

  // Sum over k in order; fp32 rows are not rounded.
  std::vector<float> expected(bool scale) {
    std::vector<float> y(kTokens * kHidden);
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t k = 0; k < kTopk; ++k) {
        const std::int32_t e = idx_[i / kHidden * kTopk + k];
        if (e < 0) continue;
        const float factor = scale ? static_cast<float>(1 + e % 8) / 8 : 1;
        const float term = weights_[i / kHidden * kTopk + k] * (x_[i] * factor);
        y[i] = y[i] + term;
      }
    }
    return y;
  }

  void expect_bits(const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(want[i])) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], want[i]) << i;
      }
    }
  }

  void expect_refused(const std::string& part) {
    try {
      (void)run_file(options_);
      FAIL() << "accepted, expected an error about: " << part;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_FALSE(fs::exists(options_.output));
  }

  static constexpr std::uint64_t kTokens = 11;
  static constexpr std::uint64_t kHidden = 37;
  static constexpr std::uint64_t kTopk = 4;
  static constexpr std::uint32_t kExperts = 10;
  fs::path folder_;
  RunOptions options_;
  std::vector<float> x_ = std::vector<float>(kTokens * kHidden);
  std::vector<std::int32_t> idx_ = std::vector<std::int32_t>(kTokens * kTopk);
  std::vector<float> weights_ = std::vector<float>(kTokens * kTopk);
};

TEST_F(RunFileTest, IdentityEqualsTheReference) {
  write();
  ASSERT_EQ(run_file(options_), 0);
  expect_bits(result(), expected(false));
}

TEST_F(RunFileTest, ScaleEqualsTheReferenceOnUnevenRanks) {
  write();
  options_.expert = "scale";
  options_.split = "11,0,0";
  ASSERT_EQ(run_file(options_), 0);
  expect_bits(result(), expected(true));
}

TEST_F(RunFileTest, NanAndInfinityPassThrough) {
  x_[3] = std::numeric_limits<float>::quiet_NaN();
  x_[kHidden + 5] = std::numeric_limits<float>::infinity();
  write();
  ASSERT_EQ(run_file(options_), 0);
  expect_bits(result(), expected(false));
}

TEST_F(RunFileTest, ExpertRankPlacesTheExperts) {
  const std::vector<std::int64_t> owner(kExperts, 2);
  write({{"expert_rank", FileDType::i64, {kExperts}, bytes(owner)}});
  ASSERT_EQ(run_file(options_), 0);
  expect_bits(result(), expected(false));
}

TEST_F(RunFileTest, RankMajorOnOneRankIsTheSameSum) {
  write();
  options_.ranks = 1;
  options_.layout = "rank_major";
  ASSERT_EQ(run_file(options_), 0);
  expect_bits(result(), expected(false));
}

TEST_F(RunFileTest, RefusesWhatDoesNotFit) {
  options_.ranks = 3;
  expect_refused("x.safetensors");  // no such file
  write();
  options_.split = "5,5";
  expect_refused("--split has 2 numbers of sum 10, expected 3 of sum 11");
  options_.split.clear();
  options_.experts = 4;
  expect_refused("topk_idx: element");
  options_.experts = 0;
  const std::vector<std::int32_t> owner(kExperts, 3);
  write({{"expert_rank", FileDType::i32, {kExperts}, bytes(owner)}});
  expect_refused("expert_rank: element 0 is 3, expected 0..2");
  idx_[5] = -2;
  write();
  expect_refused("topk_idx: element 5 is -2");
}

TEST_F(RunFileTest, RefusesTruncatedAndMisshapenFiles) {
  write();
  fs::resize_file(options_.input, fs::file_size(options_.input) - 1);
  expect_refused("x.safetensors");
  write_safetensors(options_.input,
                    {{"x", FileDType::f32, {kTokens * kHidden}, bytes(x_)},
                     {"topk_idx", FileDType::i32, {kTokens, kTopk}, bytes(idx_)},
                     {"topk_weights", FileDType::f32, {kTokens, kTopk}, bytes(weights_)}});
  expect_refused("x: shape is [407], expected [tokens, hidden]");
  write_safetensors(options_.input,
                    {{"x", FileDType::f32, {kTokens, kHidden}, bytes(x_)},
                     {"topk_idx", FileDType::i32, {kTopk, kTokens}, bytes(idx_)},
                     {"topk_weights", FileDType::f32, {kTokens, kTopk}, bytes(weights_)}});
  expect_refused("topk_idx: shape is [4, 11]");
}

}  // namespace
}  // namespace ubep::tools
