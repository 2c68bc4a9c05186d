#include "base/rank_set.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace ubep {
namespace {

using test::Random;

// A set and what it should hold.
template <class Set>
struct Pair {
  Set set;
  std::set<int> want;

  Pair(int size, Random& random) : set(size) {
    const int most = random.one_in(4) ? 0 : random.below(2 * size + 1);
    for (int i = 0; i < most; ++i) insert(random.below(size));
  }
  void insert(int rank) {
    set.insert(rank);
    want.insert(rank);
  }
};

template <class Set>
std::vector<int> ranks_of(const Set& set) {
  std::vector<int> ranks;
  set.for_each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

std::vector<int> ranks_of(const std::set<int>& set) { return {set.begin(), set.end()}; }

template <class Set>
void expect_same(const Set& set, const std::set<int>& want, int size) {
  EXPECT_EQ(ranks_of(set), ranks_of(want));
  EXPECT_EQ(set.empty(), want.empty());
  if (!want.empty()) {
    EXPECT_EQ(set.first(), *want.begin());
  }
  std::uint64_t low = 0;
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(set.contains(rank), want.count(rank) != 0) << "rank " << rank;
    if (want.count(rank) != 0) low |= low_bit(rank);
  }
  EXPECT_EQ(set.low(), low);
}

template <class Set>
void check_operations(int size, Random& random) {
  Pair<Set> a(size, random);
  const Pair<Set> b(size, random);
  expect_same(a.set, a.want, size);
  EXPECT_EQ(a.set == b.set, a.want == b.want);

  const auto in_b = [&](int rank) { return b.want.count(rank) != 0; };
  EXPECT_EQ(a.set.meets(b.set), std::any_of(a.want.begin(), a.want.end(), in_b));
  std::set<int> both;
  std::set<int> either = b.want;
  std::set<int> rest;
  for (const int rank : a.want) {
    either.insert(rank);
    (in_b(rank) ? both : rest).insert(rank);
  }
  Set set = a.set;
  expect_same(set &= b.set, both, size);
  set = a.set;
  expect_same(set |= b.set, either, size);
  set = a.set;
  expect_same(set -= b.set, rest, size);

  const int rank = random.below(size);
  a.set.erase(rank);
  a.want.erase(rank);
  expect_same(a.set, a.want, size);
  a.set.clear();
  expect_same(a.set, {}, size);
  EXPECT_EQ(a.set, Set(size));
}

template <class Set>
void check_erasing(int size, Random& random) {
  Pair<Set> a(size, random);
  std::vector<int> seen;
  a.set.for_each([&](int rank) {
    seen.push_back(rank);
    if (rank % 3 == 0) a.set.erase(rank);
  });
  EXPECT_EQ(seen, ranks_of(a.want));
  std::erase_if(a.want, [](int rank) { return rank % 3 == 0; });
  expect_same(a.set, a.want, size);
}

template <class Set>
void check_size(int size) {
  std::set<int> all;
  for (int rank = 0; rank < size; ++rank) all.insert(rank);
  expect_same(Set::all(size), all, size);
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("size " + std::to_string(size) + ", seed " + std::to_string(seed));
    Random random(seed, static_cast<std::uint64_t>(size), 0);
    check_operations<Set>(size, random);
    check_erasing<Set>(size, random);
  }
}

TEST(RankSetTest, DoesWhatAnOrderedSetDoes) {
  for (const int size : {1, 63, 64, 65, 128, 1000, kMostRanks}) check_size<RankSet>(size);
}

TEST(FewRanksTest, DoesWhatAnOrderedSetDoes) {
  for (const int size : {1, 63, 64}) check_size<FewRanks>(size);
}

TEST(RankSetTest, WithoutASizeItIsEmpty) {
  const RankSet set;
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.low(), 0U);
}

}  // namespace
}  // namespace ubep
