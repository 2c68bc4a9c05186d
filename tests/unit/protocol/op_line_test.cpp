#include "protocol/op_line.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ubep {
namespace {

OpLine dispatch_line() {
  OpLine line;
  line.seq = 7;
  line.epoch = 4;
  line.origin = 4;
  line.hidden = 128;
  line.tokens = 3;
  line.kind = OpKind::dispatch;
  line.layout = Layout::rank_major;
  line.reduction = Reduction::per_rank;
  line.topk = 8;
  return line;
}

// The wire layout. A change here is a change of kWireVersion.
TEST(OpLineTest, WireLayout) {
  static_assert(sizeof(OpLine) == 64);
  static_assert(offsetof(OpLine, seq) == 0);
  static_assert(offsetof(OpLine, epoch) == 8);
  static_assert(offsetof(OpLine, origin) == 16);
  static_assert(offsetof(OpLine, view) == 24);
  static_assert(offsetof(OpLine, map_version) == 28);
  static_assert(offsetof(OpLine, round) == 32);
  static_assert(offsetof(OpLine, layer) == 36);
  static_assert(offsetof(OpLine, payload_bytes) == 38);
  static_assert(offsetof(OpLine, hidden) == 40);
  static_assert(offsetof(OpLine, tokens) == 44);
  static_assert(offsetof(OpLine, kind) == 48);
  static_assert(offsetof(OpLine, dtype) == 49);
  static_assert(offsetof(OpLine, layout) == 50);
  static_assert(offsetof(OpLine, reduction) == 51);
  static_assert(offsetof(OpLine, topk) == 52);
  static_assert(offsetof(OpLine, topk1) == 53);
  EXPECT_EQ(static_cast<int>(OpKind::dispatch), 1);
  EXPECT_EQ(static_cast<int>(OpKind::combine), 2);
  EXPECT_EQ(static_cast<int>(DType::bf16), 0);
  EXPECT_EQ(static_cast<int>(DType::fp32), 2);
  EXPECT_EQ(static_cast<int>(DType::u8), 3);
  EXPECT_EQ(static_cast<int>(Quant::mxfp8), 5);
  EXPECT_EQ(static_cast<int>(Layout::expert_major), 1);
  static_assert(offsetof(OpLine, path) == 54);
  static_assert(offsetof(OpLine, relay_shift) == 55);
  EXPECT_EQ(static_cast<int>(Reduction::per_rank), 2);
  EXPECT_EQ(static_cast<int>(Path::relay), 6);
}

struct Change {
  std::string field;
  std::function<void(OpLine&)> apply;
  std::uint64_t mine, theirs;
};

std::vector<Change> changes() {
  return {
      {"operation kind", [](OpLine& l) { l.kind = OpKind::combine; }, 1, 2},
      {"epoch", [](OpLine& l) { l.epoch = 5; }, 4, 5},
      {"origin", [](OpLine& l) { l.origin = 1; }, 4, 1},
      {"hidden", [](OpLine& l) { l.hidden = 64; }, 128, 64},
      {"topk", [](OpLine& l) { l.topk = 4; }, 8, 4},
      {"dtype", [](OpLine& l) { l.dtype = DType::fp16; }, 0, 1},
      {"quant", [](OpLine& l) { l.quant = Quant::int8; }, 0, 4},
      {"payload bytes", [](OpLine& l) { l.payload_bytes = 8; }, 0, 8},
      {"unweighted", [](OpLine& l) { l.unweighted = 1; }, 0, 1},
      {"layout", [](OpLine& l) { l.layout = Layout::expert_major; }, 0, 1},
      {"topk1", [](OpLine& l) { l.topk1 = 1; }, 0, 1},
      {"reduction", [](OpLine& l) { l.reduction = Reduction::exact; }, 2, 1},
      {"view", [](OpLine& l) { l.view = 3; }, 0, 3},
      {"map_version", [](OpLine& l) { l.map_version = 3; }, 0, 3},
      {"layer", [](OpLine& l) { l.layer = 3; }, 0, 3},
      {"round", [](OpLine& l) { l.round = 3; }, 0, 3},
  };
}

TEST(OpLineTest, EveryFieldThatRanksMustAgreeOnIsCompared) {
  for (const Change& change : changes()) {
    OpLine theirs = dispatch_line();
    change.apply(theirs);
    const OpDifference found = compare(dispatch_line(), theirs);
    ASSERT_NE(found.field, nullptr) << change.field;
    EXPECT_EQ(change.field, found.field);
    EXPECT_EQ(found.mine, change.mine) << change.field;
    EXPECT_EQ(found.theirs, change.theirs) << change.field;
  }
}

// The first difference explains the others: another operation has another shape.
TEST(OpLineTest, TheFirstDifferenceIsNamed) {
  const std::vector<Change> all = changes();
  OpLine theirs = dispatch_line();
  for (auto change = all.rbegin(); change != all.rend(); ++change) {
    change->apply(theirs);
    EXPECT_EQ(compare(dispatch_line(), theirs).field, change->field);
  }
}

TEST(OpLineTest, TokensMayDiffer) {
  OpLine theirs = dispatch_line();
  theirs.tokens = 99;
  theirs.seq = 8;
  EXPECT_EQ(compare(dispatch_line(), theirs).field, nullptr);
}

GroupConfig declared() {
  GroupConfig config;
  config.max_tokens = 10;
  config.expert_capacity = 7;
  return config;
}

TEST(OpLineTest, PathsOfRowsMayDifferButTheBaselinesAreEverybodys) {
  const auto paths = {Path::read, Path::pull, Path::push, Path::bsp, Path::allgather, Path::relay};
  for (const Path mine : paths) {
    for (const Path theirs : paths) {
      OpLine a = dispatch_line();
      OpLine b = dispatch_line();
      a.path = mine;
      b.path = theirs;
      const bool free = std::max(mine, theirs) <= Path::push;
      EXPECT_EQ(compare(a, b).field == nullptr, free || mine == theirs);
    }
  }
}

TEST(OpLineTest, WhatNoCorrectRankWritesIsCorrupt) {
  const std::vector<Change> damages = {
      {"operation kind", [](OpLine& l) { l.kind = OpKind::none; }, 2, 0},
      {"operation kind", [](OpLine& l) { l.kind = static_cast<OpKind>(3); }, 2, 3},
      {"dtype", [](OpLine& l) { l.dtype = static_cast<DType>(4); }, 3, 4},
      {"quant", [](OpLine& l) { l.quant = static_cast<Quant>(6); }, 5, 6},
      {"spare bits", [](OpLine& l) { l.spare = 1; }, 0, 1},
      {"layout", [](OpLine& l) { l.layout = static_cast<Layout>(3); }, 2, 3},
      {"reduction", [](OpLine& l) { l.reduction = static_cast<Reduction>(255); }, 3, 255},
      {"topk1", [](OpLine& l) { l.topk1 = 2; }, 1, 2},
      {"tokens", [](OpLine& l) { l.tokens = 11; }, 10, 11},
      {"path", [](OpLine& l) { l.path = Path::automatic; }, 6, 0},
      {"path", [](OpLine& l) { l.path = static_cast<Path>(7); }, 6, 7},
      {"path", [](OpLine& l) { l.path = Path::push; }, 2, 3},
      {"path", [](OpLine& l) { l.path = Path::bsp; }, 2, 4},
      {"path", [](OpLine& l) { l.path = Path::relay; }, 2, 6},
      {"alignment", [](OpLine& l) { l.alignment = 0; }, 256, 0},
      {"alignment", [](OpLine& l) { l.alignment = 257; }, 256, 257},
      {"capacity", [](OpLine& l) { l.capacity = 1; }, 0, 1},
      {"capacity",
       [](OpLine& l) {
         l.layout = Layout::expert_padded;
         l.capacity = 8;
       },
       7, 8},
  };
  for (const Change& damage : damages) {
    OpLine line = dispatch_line();
    damage.apply(line);
    const OpDifference found = find_corruption(line, declared());
    ASSERT_NE(found.field, nullptr) << damage.field;
    EXPECT_EQ(damage.field, found.field);
    EXPECT_EQ(found.mine, damage.mine) << damage.field;
    EXPECT_EQ(found.theirs, damage.theirs) << damage.field;
  }
}

TEST(OpLineTest, EveryLegalLinePasses) {
  OpLine line = dispatch_line();
  line.tokens = 10;
  for (const OpKind kind : {OpKind::dispatch, OpKind::combine}) {
    for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
      line.kind = kind;
      line.dtype = dtype;
      EXPECT_EQ(find_corruption(line, declared()).field, nullptr);
    }
  }
}

}  // namespace
}  // namespace ubep
