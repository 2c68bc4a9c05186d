#include "tools/ubep/routing_source.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>

#include "tests/unit/tools/test_support.hpp"
#include "tools/ubep/random.hpp"
#include "tools/ubep/safetensors.hpp"

namespace ubep::tools {
namespace {

RoutingOptions some_options() {
  return {.num_tokens = {300, 0, 200}, .topk = 8, .experts = 64, .seed = 5};
}

// How often each expert was chosen, by all ranks together.
std::vector<int> counts_of(const std::vector<RankRouting>& ranks, int experts) {
  std::vector<int> counts(static_cast<std::size_t>(experts));
  for (const RankRouting& rank : ranks) {
    for (const std::int32_t expert : rank.topk_idx) ++counts.at(static_cast<std::size_t>(expert));
  }
  return counts;
}

class GeneratedRoutingTest : public testing::TestWithParam<const char*> {};

TEST_P(GeneratedRoutingTest, HasDistinctExpertsAndNormalisedWeights) {
  const RoutingOptions options = some_options();
  const auto ranks = make_routing(GetParam(), options);
  ASSERT_EQ(ranks.size(), options.num_tokens.size());
  const auto topk = static_cast<std::size_t>(options.topk);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankRouting& routing = ranks[rank];
    ASSERT_EQ(routing.topk_idx.size(), static_cast<std::size_t>(options.num_tokens[rank]) * topk);
    ASSERT_EQ(routing.topk_weights.size(), routing.topk_idx.size());
    for (std::size_t at = 0; at < routing.topk_idx.size(); at += topk) {
      const auto row = std::span(routing.topk_idx).subspan(at, topk);
      const std::set<std::int32_t> distinct(row.begin(), row.end());
      ASSERT_EQ(distinct.size(), topk);
      ASSERT_GE(*distinct.begin(), 0);
      ASSERT_LT(*distinct.rbegin(), options.experts);
      double sum = 0;
      for (const float weight : std::span(routing.topk_weights).subspan(at, topk)) {
        ASSERT_GT(weight, 0);
        sum += weight;
      }
      ASSERT_NEAR(sum, 1, 1e-5);
    }
  }
}

TEST_P(GeneratedRoutingTest, DependsOnSeedSetAndRankOnly) {
  const RoutingOptions options = some_options();
  const auto ranks = make_routing(GetParam(), options);
  EXPECT_EQ(make_routing(GetParam(), options)[0].topk_idx, ranks[0].topk_idx);
  EXPECT_EQ(make_routing(GetParam(), options)[0].topk_weights, ranks[0].topk_weights);

  RoutingOptions other = options;
  other.set = 1;
  EXPECT_NE(make_routing(GetParam(), other)[0].topk_idx, ranks[0].topk_idx);
  EXPECT_NE(make_routing(GetParam(), other)[0].topk_weights, ranks[0].topk_weights);
  other = options;
  other.seed = 6;
  EXPECT_NE(make_routing(GetParam(), other)[0].topk_idx, ranks[0].topk_idx);
  other = options;
  other.num_tokens = {1, 1, 200};  // the tokens of other ranks change nothing
  EXPECT_EQ(make_routing(GetParam(), other)[2].topk_idx, ranks[2].topk_idx);
  other.num_tokens = {200, 200};
  const auto equal_ranks = make_routing(GetParam(), other);
  EXPECT_NE(equal_ranks[0].topk_idx, equal_ranks[1].topk_idx);
}

TEST_P(GeneratedRoutingTest, TakesAllExpertsWhenKIsE) {
  RoutingOptions options{.num_tokens = {50}, .topk = 8, .experts = 8};
  const std::string spec = GetParam();
  const auto counts = counts_of(make_routing(spec.starts_with("hot") ? "hot:4" : spec, options), 8);
  for (const int count : counts) EXPECT_EQ(count, 50);
}

INSTANTIATE_TEST_SUITE_P(Specs, GeneratedRoutingTest,
                         testing::Values("uniform", "zipf:0", "zipf:1.2", "zipf:10", "hot:4",
                                         "hot:7", "hot:60"));

// The generator's own figures: another value here is another routing for every user's seed.
TEST(RoutingTest, IsTheSameEverywhere) {
  const RoutingOptions options{.num_tokens = {2}, .topk = 4, .experts = 16, .seed = 1};
  EXPECT_EQ(make_routing("uniform", options)[0].topk_idx,
            (std::vector<std::int32_t>{6, 3, 11, 15, 7, 3, 13, 8}));
  EXPECT_EQ(make_routing("zipf:1", options)[0].topk_idx,
            (std::vector<std::int32_t>{6, 11, 5, 14, 15, 6, 3, 13}));
  EXPECT_EQ(make_routing("hot:2", options)[0].topk_idx,
            (std::vector<std::int32_t>{6, 3, 11, 8, 6, 3, 0, 4}));
}

TEST(RoutingTest, UniformIsEven) {
  const RoutingOptions options{.num_tokens = {8000}, .topk = 8, .experts = 64};
  for (const int count : counts_of(make_routing("uniform", options), 64)) {
    EXPECT_NEAR(count, 1000, 150);  // five standard deviations
  }
}

TEST(RoutingTest, ZipfFollowsThePowerLaw) {
  const RoutingOptions options{.num_tokens = {100'000}, .topk = 1, .experts = 16};
  std::vector<int> counts = counts_of(make_routing("zipf:1.5", options), 16);
  std::sort(counts.begin(), counts.end(), std::greater<>());
  double sum = 0;
  for (int i = 1; i <= 16; ++i) sum += std::pow(i, -1.5);
  for (int i = 1; i <= 16; ++i) {
    const double expected = 1e5 * std::pow(i, -1.5) / sum;
    EXPECT_NEAR(counts[static_cast<std::size_t>(i - 1)], expected, 6 * std::sqrt(expected));
  }
}

// Without replacement, the first two of weights 1, 2^-10, 3^-10 must come almost always, the third
// (by the walk over the rest) with the probability that the weights left give it.
TEST(RoutingTest, ZipfDrawsTheRestRightWhenTheHeadTakesAll) {
  const RoutingOptions options{.num_tokens = {20'000}, .topk = 2, .experts = 3};
  std::vector<int> counts = counts_of(make_routing("zipf:10", options), 3);
  std::sort(counts.begin(), counts.end());
  const double third = 1 / (1 + std::pow(1.5, 10));
  EXPECT_NEAR(counts[0], 20'000 * third, 6 * std::sqrt(20'000 * third));
}

TEST(RoutingTest, PopularExpertsAreTheSameInAllSetsAndRanks) {
  RoutingOptions options{.num_tokens = {500, 500}, .topk = 2, .experts = 32, .seed = 3};
  const auto most_popular = [&](std::size_t rank) {
    const auto counts = counts_of({make_routing("zipf:2", options)[rank]}, 32);
    return std::max_element(counts.begin(), counts.end()) - counts.begin();
  };
  const auto first = most_popular(0);
  EXPECT_EQ(most_popular(1), first);
  options.set = 9;
  EXPECT_EQ(most_popular(0), first);
}

TEST(RoutingTest, HotExpertsTakeHalf) {
  for (const auto& [spec, num_hot] : {std::pair{"hot:4", 4}, {"hot:5", 5}, {"hot:16", 16}}) {
    const RoutingOptions options{.num_tokens = {4000}, .topk = 7, .experts = 64, .seed = 2};
    std::vector<int> counts = counts_of(make_routing(spec, options), 64);
    std::sort(counts.begin(), counts.end(), std::greater<>());
    double hot = 0;
    for (int i = 0; i < num_hot; ++i) hot += counts[static_cast<std::size_t>(i)];
    EXPECT_NEAR(hot / (4000 * 7), 0.5, 0.02) << spec;  // six standard deviations
    // Even among the hot, and among the others.
    EXPECT_LT(counts[0], 1.2 * counts[static_cast<std::size_t>(num_hot - 1)]) << spec;
    EXPECT_LT(counts[static_cast<std::size_t>(num_hot)], 1.6 * counts.back()) << spec;
  }
}

TEST(RoutingTest, RefusesMalformedSpecs) {
  const RoutingOptions options = some_options();
  for (const char* spec : {"", "even", "uniform:1", "file", "file:", ":", "Zipf:1"}) {
    EXPECT_INPUT_ERROR(make_routing(spec, options), "unknown routing");
  }
  for (const char* spec :
       {"zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:nan", "zipf:inf", "zipf:11", "zipf:1x", "hot",
        "hot:", "hot:0", "hot:-4", "hot:4.5", "hot:65", "hot:99999999999"}) {
    EXPECT_INPUT_ERROR(make_routing(spec, options), "needs a number from");
  }
  EXPECT_INPUT_ERROR(make_routing("hot:3", options), "half of the top-8 choices");
  EXPECT_INPUT_ERROR(make_routing("hot:61", options), "among 61 hot or 3 other experts");
}

TEST(RoutingTest, RefusesImpossibleOptions) {
  const auto with = [](int tokens, int topk, int experts) {
    return RoutingOptions{.num_tokens = {1, tokens}, .topk = topk, .experts = experts};
  };
  EXPECT_INPUT_ERROR(make_routing("uniform", with(1, 9, 8)),
                     "1 to the number of experts (8), not 9");
  EXPECT_INPUT_ERROR(make_routing("uniform", with(1, 0, 8)), "not 0");
  EXPECT_INPUT_ERROR(make_routing("uniform", with(1, 1, 0)), "experts (0)");
  EXPECT_INPUT_ERROR(make_routing("uniform", with(-1, 1, 8)), "not -1");
  EXPECT_INPUT_ERROR(make_routing("uniform", RoutingOptions{}), "at least one rank");
}

// Writes a file of one tensor and returns the spec that reads it.
template <class Int>
std::string put_rows(const TempFolder& folder, const std::string& name,
                     const std::vector<std::uint64_t>& shape, const std::vector<Int>& values) {
  const FileDType dtype = sizeof(Int) == 4 ? FileDType::i32 : FileDType::i64;
  const std::string path = folder.file("routing");
  write_safetensors(path, {{name, dtype, shape, std::as_bytes(std::span(values))}});
  return "file:" + path;
}

TEST(FileRoutingTest, SplitsTheRowsOverTheRanksInOrder) {
  const TempFolder folder;
  const std::vector<std::int64_t> rows = {0, 1, 2, 3, 4, -1, -1, -1, 9, 9};
  const std::string spec = put_rows(folder, "topk_idx", {5, 2}, rows);
  const auto ranks = make_routing(spec, {.num_tokens = {1, 0, 3}, .topk = 2, .experts = 8});
  EXPECT_EQ(ranks[0].topk_idx, (std::vector<std::int32_t>{0, 1}));
  EXPECT_TRUE(ranks[1].topk_idx.empty());
  EXPECT_EQ(ranks[2].topk_idx, (std::vector<std::int32_t>{2, 3, 4, -1, -1, -1}));
  const std::vector<float>& weights = ranks[2].topk_weights;
  EXPECT_NEAR(weights[0] + weights[1], 1, 1e-6);
  EXPECT_EQ(weights[2], 1);
  EXPECT_EQ(weights[3] + weights[4] + weights[5], 0);
}

TEST(FileRoutingTest, ReadsTheFirstLayerOfANamedTensor) {
  const TempFolder folder;
  const std::vector<std::int32_t> rows = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::string spec = put_rows(folder, "layer3", {2, 2, 2}, rows);
  RoutingOptions options{.num_tokens = {2}, .topk = 2, .experts = 8, .tensor = "layer3"};
  EXPECT_EQ(make_routing(spec, options)[0].topk_idx, (std::vector<std::int32_t>{0, 1, 2, 3}));
  options.num_tokens = {2, 1};  // the second layer is not more rows
  EXPECT_INPUT_ERROR(make_routing(spec, options), "has 2 rows but the ranks' tokens are 3");
  options.tensor = "layer4";
  EXPECT_INPUT_ERROR(make_routing(spec, options), R"(there are: "layer3")");
}

TEST(FileRoutingTest, RefusesWhatDoesNotFitTheOptions) {
  const TempFolder folder;
  RoutingOptions options{.num_tokens = {2, 1}, .topk = 2, .experts = 8};
  const auto refuse = [&](const std::vector<std::uint64_t>& shape,
                          const std::vector<std::int32_t>& rows) {
    const std::string spec = put_rows(folder, "topk_idx", shape, rows);
    return input_error_of([&] { make_routing(spec, options); });
  };
  EXPECT_PRED2(contains, refuse({3, 2}, {0, 1, 2, 8, 0, 0}),
               "row 1 of tensor topk_idx has expert 8, not one of -1..7");
  EXPECT_PRED2(contains, refuse({3, 2}, {0, 1, 2, 3, 0, -2}),
               "row 2 of tensor topk_idx has expert -2");
  EXPECT_PRED2(contains, refuse({2, 2}, {0, 1, 2, 3}), "has 2 rows but the ranks' tokens are 3");
  EXPECT_PRED2(contains, refuse({2, 3}, {0, 1, 2, 3, 4, 5}), "3 choices per token but --topk is 2");
  EXPECT_PRED2(contains, refuse({6}, {0, 1, 2, 3, 4, 5}), "not I32 or I64 [tokens, K]");
  EXPECT_PRED2(contains, refuse({0, 4, 2}, {}), "not I32 or I64 [tokens, K]");
  const std::vector<float> floats(6);
  const std::string path = folder.file("f");
  write_safetensors(path, {{"topk_idx", FileDType::f32, {3, 2}, std::as_bytes(std::span(floats))}});
  EXPECT_INPUT_ERROR(make_routing("file:" + path, options), "topk_idx is F32 [3, 2]");
  EXPECT_INPUT_ERROR(make_routing("file:" + folder.file("absent"), options), "No such file");
}

TEST(FileRoutingTest, ChecksAllBitsOfAnI64) {
  const TempFolder folder;
  const std::vector<std::int64_t> rows = {(std::int64_t{1} << 32) + 1};
  const std::string spec = put_rows(folder, "topk_idx", {1, 1}, rows);
  EXPECT_INPUT_ERROR(make_routing(spec, {.num_tokens = {1}, .topk = 1, .experts = 8}),
                     "has expert 4294967297");
}

TEST(RandomTest, IsSplitMix64AndBounded) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(random.below(3), 3U);
    const double unit = random.unit();
    EXPECT_TRUE(unit >= 0 && unit < 1);
  }
  EXPECT_NE(Random(1, {0, 1}).next(), Random(1, {1, 0}).next());
  EXPECT_NE(Random(1).next(), Random(1, {0}).next());
}

}  // namespace
}  // namespace ubep::tools
