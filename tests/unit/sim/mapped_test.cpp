// Layers on a pod whose memory is mapped: what is read, stored and prepared costs what the pod
// says.
#include <gtest/gtest.h>

#include "sim/layer_run.hpp"
#include "tests/unit/sim/layer_error.hpp"
#include "tests/unit/sim/pods.hpp"

namespace ubep::sim {
namespace {

constexpr std::uint64_t kGbS = 1'000'000'000;

// Two ranks that cost nothing but what a test sets; each token goes to four experts, two of each.
LayerOptions options_of(Path path, Store store) {
  LayerOptions o;
  o.pod = flat_pod(2, kGbS, 0);
  o.pod.mapped = store;
  o.pod.combine = o.pod.bsp_combine = o.pod.lane;
  o.ranks = 2;
  o.tokens = 1;
  o.hidden = 5000;  // 10'000 bytes
  o.topk = o.experts = 4;
  o.path = path;
  o.aligned = true;
  return o;
}

struct Us {
  double dispatch, combine;
};
Us times_of(const LayerOptions& o) {
  const RankTimes rank = run_layer(o).ranks.front();
  const auto us = [](Time time) { return static_cast<double>(time) / double{kMicrosecond}; };
  return {us(rank.dispatch), us(rank.combine - rank.combine_start)};
}

// Records and other words are some hundred bytes.
constexpr double kWords = 1;

TEST(MappedTest, APulledRowIsReadOnceAndOutputsEach) {
  LayerOptions o = options_of(Path::pull, Store::near);
  o.pod.lane.read = o.pod.combine->read = kGbS;
  const Us us = times_of(o);
  EXPECT_NEAR(us.dispatch, 10, kWords);
  EXPECT_NEAR(us.combine, 20, kWords);
}

TEST(MappedTest, PushedRowsArePutAndNotRead) {
  LayerOptions o = options_of(Path::push, Store::near);
  o.pod.lane.read = o.pod.lane.put = kGbS;
  EXPECT_NEAR(times_of(o).dispatch, 20, kWords);
}

TEST(MappedTest, RowsOfBspAreReadOutOfTheInbox) {
  LayerOptions o = options_of(Path::bsp, Store::near);
  o.pod.lane.read = o.pod.bsp_combine->read = kGbS;
  const Us us = times_of(o);
  EXPECT_NEAR(us.dispatch, 20, kWords);
  EXPECT_NEAR(us.combine, 20, kWords);
}

TEST(MappedTest, OutputsAreSharedWhenFarAndLieThereWhenNear) {
  for (const Store store : {Store::near, Store::far}) {
    LayerOptions o = options_of(Path::pull, store);
    o.pod.lane.share = o.pod.combine->share = kGbS;
    const Us us = times_of(o);
    EXPECT_NEAR(us.dispatch, 10, kWords);
    EXPECT_NEAR(us.combine, store == Store::far ? 20 : 0, kWords);
  }
}

TEST(MappedTest, RowsArePrepared) {
  LayerOptions o = options_of(Path::pull, Store::near);
  o.pod.lane.row = o.pod.combine->combine_row = 10 * kMicrosecond;
  const Us us = times_of(o);
  EXPECT_NEAR(us.dispatch, 50, kWords);  // one token, two own copies and two of the peer's rows
  EXPECT_NEAR(us.combine, 40, kWords);
}

TEST(MappedTest, OnlyStoresForPeersAreOrdered) {
  LayerOptions o = options_of(Path::pull, Store::near);
  o.pod.lane.fence = o.pod.combine->fence = 10 * kMicrosecond;
  const Us us = times_of(o);
  EXPECT_NEAR(us.dispatch, 30, kWords);  // after the record, the token, and the base table
  EXPECT_NEAR(us.combine, 0, kWords);
}

TEST(MappedTest, EachPieceOfWordsIsWaitedFor) {
  LayerOptions o = options_of(Path::pull, Store::near);
  o.pod.lane.read_first = 10 * kMicrosecond;
  // Op line, the record's head, its entries.
  EXPECT_NEAR(times_of(o).dispatch, 30, kWords);
}

TEST(MappedTest, RowsComeBackRight) {
  for (const Path path : {Path::pull, Path::push, Path::bsp}) {
    for (const Store store : {Store::near, Store::far}) {
      LayerOptions o = options_of(path, store);
      o.tokens = 7;
      o.hidden = 96;
      o.moves_rows = true;
      EXPECT_EQ(run_layer(o).wrong_rows, 0) << static_cast<int>(path);
    }
  }
}

TEST(MappedTest, NoLinksThatCouldBeSlower) {
  LayerOptions o = options_of(Path::pull, Store::near);
  o.pod.background = kGbS / 2;
  EXPECT_EQ(error_of(o), "the pod flat is mapped: it has no links that could be slower");
}

}  // namespace
}  // namespace ubep::sim
