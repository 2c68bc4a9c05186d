// Windows of more than 4 GiB, of which only some pages are ever touched.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/ranks.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {
namespace {

constexpr int kHidden = 8192;      // rows of 32 KiB
constexpr int kCapacity = 50'000;  // of an expert: 1.5 GiB
constexpr int kLocalExperts = 4;
constexpr int kTokens = 3;

class WideWindowTest : public testing::TestWithParam<RankKind> {};

float value_of(int rank, int token) { return static_cast<float>(100 * rank + token + 1); }

// Every token goes to the last expert of each rank, whose rows begin 4.6 GiB behind the first.
void run_rank(const Bootstrap& bootstrap, Path path, Store store) {
  CommunicatorOptions options;
  options.num_experts = 2 * kLocalExperts;
  options.max_tokens = kTokens;
  options.max_hidden = kHidden;
  options.max_dtype = DType::fp32;
  options.max_topk = 2;
  options.slots = 1;
  options.expert_capacity = kCapacity;
  options.store = store;
  Communicator comm = Communicator::create(bootstrap, options);
  EXPECT_GT(comm.memory().reserved_bytes(), std::size_t{6} << 30);
  EXPECT_LT(comm.memory().expected_resident_bytes, std::size_t{64} << 20);
  std::vector<float> x(kTokens * kHidden);
  std::vector<std::int32_t> idx;
  for (int t = 0; t < kTokens; ++t) {
    std::fill_n(x.begin() + t * kHidden, kHidden, value_of(bootstrap.rank, t));
    idx.insert(idx.end(), {kLocalExperts - 1, 2 * kLocalExperts - 1});
  }
  const std::vector<float> weights(idx.size(), 0.5F);
  Handle handle;
  ASSERT_TRUE(comm.dispatch({x.data(), kTokens, kHidden, DType::fp32}, {idx, weights, 2},
                            {.layout = Layout::expert_padded, .path = path}, handle)
                  .ok());
  const Received& received = handle.received();
  ASSERT_EQ(received.expert_counts[kLocalExperts - 1], 2 * kTokens);
  const Rows y = handle.expert_output();
  for (int i = 0; i < 2 * kTokens; ++i) {
    const std::int64_t row = std::int64_t{kLocalExperts - 1} * kCapacity + i;
    float first = 0;
    float last = 0;
    std::memcpy(&first, received.row(row), sizeof(first));
    std::memcpy(&last, received.row(row) + (kHidden - 1) * sizeof(float), sizeof(last));
    EXPECT_EQ(first, value_of(i / kTokens, i % kTokens));
    EXPECT_EQ(last, first);
    for (int h = 0; h < kHidden; ++h) {
      const float doubled = 2 * first;
      std::memcpy(y.row(row) + h * static_cast<int>(sizeof(float)), &doubled, sizeof(float));
    }
  }
  std::vector<float> out(x.size());
  ASSERT_TRUE(comm.combine(handle, {.out = {out.data(), kTokens, kHidden, DType::fp32}}).ok());
  for (int t = 0; t < kTokens; ++t) {
    EXPECT_EQ(out[static_cast<std::size_t>(t) * kHidden], 2 * value_of(bootstrap.rank, t));
    EXPECT_EQ(out[static_cast<std::size_t>(t + 1) * kHidden - 1], 2 * value_of(bootstrap.rank, t));
  }
}

TEST_P(WideWindowTest, RowsBeyondFourGiBAreFound) {
  for (const Path path : {Path::pull, Path::push}) {
    for (const Store store : {Store::near, Store::far}) {
      run_ranks(GetParam(), 2,
                [&](const Bootstrap& bootstrap) { run_rank(bootstrap, path, store); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, WideWindowTest,
                         testing::Values(RankKind::threads, RankKind::processes),
                         [](const auto& kind) {
                           return kind.param == RankKind::threads ? "threads" : "processes";
                         });

}  // namespace
}  // namespace ubep::test
