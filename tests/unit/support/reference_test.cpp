// The reference against values worked out by hand.
//
// Two ranks, experts 0 and 1 on rank 0, experts 2 on rank 1, hidden 1, top-k 2:
//   rank 0  token 0 (x = 1): experts 2, 0     token 1 (x = 2): experts -1, 1
//   rank 1  token 0 (x = 4): experts 0, 1     token 1 (x = 8): experts 1, 1
#include "support/reference.hpp"

#include <gtest/gtest.h>

#include "support/numbers.hpp"

namespace ubep::test {
namespace {

std::vector<std::byte> rows_of(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> rows(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_bits(dtype, round_to(dtype, values[i]), rows.data() + i * size_of(dtype));
  }
  return rows;
}

Problem two_ranks(DType dtype = DType::fp32) {
  Problem problem;
  problem.num_experts = 3;
  problem.dtype = dtype;
  problem.hidden = 1;
  problem.topk = 2;
  problem.ranks.push_back({2, rows_of(dtype, {1, 2}), {2, 0, -1, 1}, {0.5F, 0.25F, 9.0F, 2.0F}});
  problem.ranks.push_back({2, rows_of(dtype, {4, 8}), {0, 1, 1, 1}, {1.0F, 0.5F, 0.125F, 0.25F}});
  return problem;
}

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

TEST(ReferenceTest, BlocksGiveTheFirstRanksOneMore) {
  const Problem problem = two_ranks();
  EXPECT_EQ(owners_of(problem), (Ints{0, 0, 1}));
  EXPECT_EQ(experts_of(problem, 0), (Ints{0, 1}));
  EXPECT_EQ(experts_of(problem, 1), (Ints{2}));
}

TEST(ReferenceTest, LocalIdsFollowGlobalOrder) {
  Problem problem = two_ranks();
  problem.expert_rank = {1, 0, 1};
  EXPECT_EQ(experts_of(problem, 1), (Ints{0, 2}));
  const ExpectedReceived received = expected_received(problem, 1);
  EXPECT_EQ(received.topk_idx, (Ints{1, 0, 0, -1}));
  EXPECT_EQ(received.src_counts, (Ints{1, 1}));
}

TEST(ReferenceTest, RankMajorTakesATokenOnce) {
  const ExpectedReceived received = expected_received(two_ranks(), 0);
  EXPECT_EQ(received.num_rows, 4);
  EXPECT_EQ(received.rows, rows_of(DType::fp32, {1, 2, 4, 8}));
  EXPECT_EQ(received.src_counts, (Ints{2, 2}));
  EXPECT_EQ(received.topk_idx, (Ints{-1, 0, -1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(received.topk_weights, (Floats{0, 0.25F, 0, 2, 1, 0.5F, 0.125F, 0.25F}));
  EXPECT_EQ(received.expert_counts, (Ints{2, 4}));
  EXPECT_EQ(received.expert_offsets, (Ints{0, 2, 6}));
  EXPECT_EQ(received.expert_rows, (Ints{0, 2, 1, 2, 3, 3}));  // the duplicate appears twice
}

TEST(ReferenceTest, TopkOneHasARowPerChoice) {
  Problem problem = two_ranks();
  problem.topk1 = true;
  const ExpectedReceived received = expected_received(problem, 0);
  EXPECT_EQ(received.rows, rows_of(DType::fp32, {1, 2, 4, 4, 8, 8}));
  EXPECT_EQ(received.src_counts, (Ints{2, 4}));
  EXPECT_EQ(received.topk_idx, (Ints{0, 1, 0, 1, 1, 1}));
  EXPECT_EQ(received.topk_weights, (Floats{0.25F, 2, 1, 0.5F, 0.125F, 0.25F}));
  EXPECT_EQ(received.expert_rows, (Ints{0, 2, 1, 3, 4, 5}));
}

TEST(ReferenceTest, ExpertMajorPacksByExpertAndPads) {
  Problem problem = two_ranks();
  problem.layout = Layout::expert_major;
  problem.expert_alignment = 4;
  const ExpectedReceived received = expected_received(problem, 0);
  EXPECT_EQ(received.rows, rows_of(DType::fp32, {1, 4, 0, 0, 2, 4, 8, 8}));
  EXPECT_EQ(received.expert_counts, (Ints{2, 4}));
  EXPECT_EQ(received.expert_offsets, (Ints{0, 4, 8}));
  const ExpectedReceived other = expected_received(problem, 1);
  EXPECT_EQ(other.rows, rows_of(DType::fp32, {1, 0, 0, 0}));
  EXPECT_EQ(other.expert_offsets, (Ints{0, 4}));
}

TEST(ReferenceTest, AbsentSourcesSendNothing) {
  Problem problem = two_ranks();
  problem.sources = 0b10;
  const ExpectedReceived received = expected_received(problem, 0);
  EXPECT_EQ(received.src_counts, (Ints{0, 2}));
  EXPECT_EQ(received.rows, rows_of(DType::fp32, {4, 8}));
}

TEST(ReferenceTest, CombineWeightsAndSums) {
  Problem problem = two_ranks();
  // Rank 0: 0.5 * 1 + 0.25 * 1, then 2 * 2 (the weight of a -1 entry does not count).
  EXPECT_EQ(expected_out(problem, 0), rows_of(DType::fp32, {0.75F, 4}));
  // Experts: square_plus gives 16 + 0, 16 + 1 and 64 + 1.
  problem.function = ExpertFunction::square_plus;
  EXPECT_EQ(expected_out(problem, 1), rows_of(DType::fp32, {24.5F, 24.375F}));
  // scaled gives x * 1/8 by expert 0, x * 2/8 by expert 1.
  problem.function = ExpertFunction::scaled;
  EXPECT_EQ(expected_out(problem, 1), rows_of(DType::fp32, {1.0F, 0.75F}));
}

TEST(ReferenceTest, TokensWithoutExpertsGivePositiveZero) {
  Problem problem = two_ranks(DType::bf16);
  problem.ranks[0].topk_idx = {-1, -1, 1, -1};
  problem.ranks[0].x = rows_of(DType::bf16, {1, -0.0F});
  EXPECT_EQ(expected_out(problem, 0), rows_of(DType::bf16, {0.0F, 0.0F}));
}

// One token, x = 1 in bf16, experts 0 (rank 0), 1 (rank 1), 2 (rank 0). bf16 has 8 significant
// bits, so 1 + 2^-8 is a tie that rounds to 1 and 1 + 2^-7 is the next number.
Problem sensitive_to_order() {
  Problem problem;
  problem.num_experts = 3;
  problem.expert_rank = {0, 1, 0};
  problem.dtype = DType::bf16;
  problem.hidden = 1;
  problem.topk = 3;
  problem.ranks.resize(2);
  problem.ranks[0] = {1, rows_of(DType::bf16, {1}), {0, 1, 2}, {1.0F, 0.00390625F, 0.00390625F}};
  return problem;
}

TEST(ReferenceTest, RankMajorRoundsTheOwnersRows) {
  // Rank 0's row: 1 + 2^-8 rounds to 1. Then 1 + 2^-8 of rank 1 rounds to 1 again.
  EXPECT_EQ(expected_out(sensitive_to_order(), 0), rows_of(DType::bf16, {1.0F}));
}

TEST(ReferenceTest, ExactRoundsOnce) {
  Problem problem = sensitive_to_order();
  problem.layout = Layout::expert_major;
  EXPECT_EQ(expected_out(problem, 0), rows_of(DType::bf16, {1.0078125F}));
}

TEST(ReferenceTest, PerRankAddsPartialSumsInRankOrder) {
  Problem problem = sensitive_to_order();
  problem.layout = Layout::expert_major;
  problem.dtype = DType::fp32;
  problem.ranks[0].x = rows_of(DType::fp32, {1});
  problem.ranks[0].topk_weights = {1e8F, 1.0F, -1e8F};
  problem.reduction = Reduction::exact;
  EXPECT_EQ(expected_out(problem, 0), rows_of(DType::fp32, {0.0F}));  // 1e8 + 1 = 1e8
  problem.reduction = Reduction::per_rank;
  EXPECT_EQ(expected_out(problem, 0), rows_of(DType::fp32, {1.0F}));
}

TEST(ReferenceTest, TopkOneRoundsEachProduct) {
  Problem problem = sensitive_to_order();
  problem.topk1 = true;
  // Rank 0: 1 + 2^-8 unrounded, then + 2^-8 of rank 1.
  EXPECT_EQ(expected_out(problem, 0), rows_of(DType::bf16, {1.0078125F}));
  // The product itself is rounded: (1 + 2^-7) * (1 + 2^-7) = 1 + 2^-6 + 2^-14 loses its last term.
  problem.ranks[0].x = rows_of(DType::bf16, {1.0078125F});
  problem.ranks[0].topk_weights = {1.0078125F, -1.015625F, 0.0F};
  problem.function = ExpertFunction::identity;
  // -1.015625 * 1.0078125 = -1.0235595703125, rounded to -1.0234375; the sum is -2^-7.
  EXPECT_EQ(expected_out(problem, 0), rows_of(DType::bf16, {-0.0078125F}));
}

}  // namespace
}  // namespace ubep::test
