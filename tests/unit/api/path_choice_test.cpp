#include "api/path_choice.hpp"

#include <gtest/gtest.h>

namespace ubep {
namespace {

TEST(StoreChoiceTest, FollowsTheProbeUnlessAsked) {
  EXPECT_EQ(choose_store(Store::automatic, Placement::smt).store, Store::near);
  EXPECT_EQ(choose_store(Store::automatic, Placement::near).store, Store::near);
  EXPECT_EQ(choose_store(Store::automatic, Placement::far).store, Store::far);
  EXPECT_EQ(choose_store(Store::automatic, Placement::unknown).store, Store::far);
  EXPECT_EQ(choose_store(Store::near, Placement::far).store, Store::near);
  EXPECT_STREQ(choose_store(Store::far, Placement::near).reason, "asked for");
}

TEST(PathChoiceTest, WhatIsAskedForStays) {
  for (const Path path : {Path::read, Path::pull, Path::push, Path::bsp, Path::allgather}) {
    EXPECT_EQ(choose_path({.path = path}, {}).path, path);
  }
}

TEST(PathChoiceTest, RankMajorIsReadUnlessRowsMustBeTheReceiversOwn) {
  EXPECT_EQ(choose_path({}, {.bytes = 1 << 30}).path, Path::read);
  EXPECT_EQ(choose_path({.mapped_view = true}, {}).path, Path::read);
  EXPECT_EQ(choose_path({.topk1 = true}, {}).path, Path::pull);
  EXPECT_EQ(choose_path({.in_place = true}, {}).path, Path::pull);
  EXPECT_EQ(choose_path({.contiguous = true}, {}).path, Path::pull);
}

TEST(PathChoiceTest, ExpertLayoutsArePushedFarWithManyBytes) {
  for (const Layout layout : {Layout::expert_major, Layout::expert_padded}) {
    const DispatchOptions options{.layout = layout};
    const PathFacts many{.store = Store::far, .push = true, .bytes = 128 * 1024};
    EXPECT_EQ(choose_path(options, many).path, Path::push);
    PathFacts other = many;
    other.bytes = 128 * 1024 - 1;
    EXPECT_EQ(choose_path(options, other).path, Path::pull);
    other = many;
    other.store = Store::near;
    EXPECT_EQ(choose_path(options, other).path, Path::pull);
    other = many;
    other.push = false;
    EXPECT_EQ(choose_path(options, other).path, Path::pull);
  }
}

}  // namespace
}  // namespace ubep
