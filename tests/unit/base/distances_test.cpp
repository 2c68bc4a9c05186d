#include "base/distances.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ubep/status.hpp"

namespace ubep {
namespace {

std::vector<std::uint16_t> row(const Distances& distances, int rank) {
  const auto from = distances.from(rank);
  return {from.begin(), from.end()};
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(DistancesTest, GroupsOfConsecutiveRanks) {
  const Distances far = distances_of_groups(std::vector{2, 4, 8}, 8);
  EXPECT_EQ(far.tiers, 4);
  EXPECT_EQ(row(far, 0), (std::vector<std::uint16_t>{0, 1, 2, 2, 3, 3, 3, 3}));
  EXPECT_EQ(row(far, 6), (std::vector<std::uint16_t>{3, 3, 3, 3, 2, 2, 0, 1}));
}

TEST(DistancesTest, GroupsThatAreNotFull) {
  const Distances far = distances_of_groups(std::vector{2, 16}, 5);
  EXPECT_EQ(far.tiers, 3);
  EXPECT_EQ(row(far, 4), (std::vector<std::uint16_t>{2, 2, 2, 2, 0}));
  EXPECT_EQ(distances_of_groups(std::vector{8, 16}, 5).tiers, 2);  // no pair of the last tier
  EXPECT_EQ(distances_of_groups(std::vector{4}, 1).tiers, 1);
}

TEST(DistancesTest, GroupsThatAreNone) {
  const auto groups = [](const std::vector<int>& sizes, int ranks) {
    return error_of([&] { (void)distances_of_groups(sizes, ranks); });
  };
  EXPECT_EQ(groups({2, 5}, 4), "distances: group size is 5, expected a multiple of 2");
  EXPECT_EQ(groups({0}, 1), "distances: group size is 0, expected a multiple of 1");
  EXPECT_EQ(groups({2, 4}, 5), "distances: the largest group has 4 ranks, expected 5");
  EXPECT_EQ(groups({}, 2), "distances: the largest group has 1 ranks, expected 2");
  EXPECT_EQ(groups({2000}, 1025), "distances: ranks is 1025, expected 1 to 1024");
  EXPECT_EQ(groups({1}, 0), "distances: ranks is 0, expected 1 to 1024");
}

// Two sockets of two, interleaved, with a measured spread within each class.
TEST(DistancesTest, LatenciesFallIntoTiers) {
  const std::vector<double> ns = {0,   240, 60,  260,  //
                                  250, 0,   255, 58,   //
                                  70,  245, -1,  900,  //
                                  251, 64,  950, 0};
  const Distances far = distances_of_latencies(ns, {.ranks = 4});
  EXPECT_EQ(far.tiers, 4);
  EXPECT_EQ(row(far, 0), (std::vector<std::uint16_t>{0, 2, 1, 2}));
  EXPECT_EQ(row(far, 1), (std::vector<std::uint16_t>{2, 0, 2, 1}));
  EXPECT_EQ(row(far, 2), (std::vector<std::uint16_t>{1, 2, 0, 3}));
  EXPECT_EQ(distances_of_latencies(ns, {.ranks = 4, .ratio = 20}).tiers, 2);
}

TEST(DistancesTest, ATierBeginsBeyondTheRatio) {
  const std::vector<double> ns = {0, 100, 150, 0};
  EXPECT_EQ(distances_of_latencies(ns, {.ranks = 2, .ratio = 1.5}).tiers, 2);
  EXPECT_EQ(distances_of_latencies(ns, {.ranks = 2, .ratio = 1.49}).tiers, 3);
  EXPECT_EQ(distances_of_latencies(std::vector{0.0}, {.ranks = 1}).tiers, 1);
}

TEST(DistancesTest, LatenciesThatAreNone) {
  const auto latencies = [](const std::vector<double>& ns, int ranks, double ratio) {
    return error_of([&] { (void)distances_of_latencies(ns, {.ranks = ranks, .ratio = ratio}); });
  };
  EXPECT_EQ(latencies({0, 1, 1}, 2, 1.5), "distances: 3 latencies, expected 2 x 2");
  EXPECT_EQ(latencies({0, 1, 1, 0}, 2, 1), "distances: ratio is 1, expected 1.05 or more");
  const auto with = [](const std::string& number) {
    return fmt::format(
        "distances: latency from rank 1 to 0 is {} ns, expected more than 0 and at most 1e9",
        number);
  };
  EXPECT_EQ(latencies({0, 1, 0, 0}, 2, 1.5), with("0"));
  EXPECT_EQ(latencies({0, 1, NAN, 0}, 2, 1.5), with("nan"));
  EXPECT_EQ(latencies({0, 1, INFINITY, 0}, 2, 1.5), with("inf"));
}

}  // namespace
}  // namespace ubep
