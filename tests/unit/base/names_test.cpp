// Names of enum values and the one-line messages of Status.
#include <gtest/gtest.h>

#include "ubep/status.hpp"
#include "ubep/types.hpp"

namespace ubep {
namespace {

Status dispatch_status(Code code) {
  Status status;
  status.code = code;
  status.kind = OpKind::dispatch;
  status.rank = 1;
  status.epoch = 12;
  return status;
}

TEST(NamesTest, EveryValueHasItsName) {
  EXPECT_STREQ(name(DType::bf16), "bf16");
  EXPECT_STREQ(name(DType::fp16), "fp16");
  EXPECT_STREQ(name(DType::fp32), "fp32");
  EXPECT_STREQ(name(Layout::rank_major), "rank_major");
  EXPECT_STREQ(name(Layout::expert_major), "expert_major");
  EXPECT_STREQ(name(Path::automatic), "auto");
  EXPECT_STREQ(name(Path::pull), "pull");
  EXPECT_STREQ(name(Protocol::automatic), "auto");
  EXPECT_STREQ(name(Protocol::put_with_signal), "put-with-signal");
  EXPECT_STREQ(name(Protocol::token_flag_128), "tff-128");
  EXPECT_STREQ(name(Protocol::fence), "fence");
  EXPECT_STREQ(name(Word::armed), "armed");
  EXPECT_STREQ(name(Store::near), "near");
  EXPECT_STREQ(name(Store::far), "far");
  EXPECT_STREQ(name(Placement::smt), "smt");
  EXPECT_STREQ(name(Placement::far), "far");
  EXPECT_STREQ(name(Quant::none), "none");
  EXPECT_STREQ(name(Quant::fp8), "fp8");
  EXPECT_STREQ(name(Quant::fp8_pow2), "fp8_pow2");
  EXPECT_STREQ(name(Quant::fp8_ue8m0), "fp8_ue8m0");
  EXPECT_STREQ(name(Quant::int8), "int8");
  EXPECT_STREQ(name(Quant::mxfp8), "mxfp8");
  EXPECT_STREQ(name(Word::state), "state");
  EXPECT_STREQ(name(Word::record), "record");
  EXPECT_STREQ(name(OpKind::combine), "combine");
  EXPECT_STREQ(name(Code::no_capacity), "no_capacity");
  EXPECT_STREQ(name(Code::slot_busy), "slot_busy");
}

// Such values come from damaged shared memory.
TEST(NamesTest, UnknownValuesDoNotReadBeyondTheTable) {
  EXPECT_STREQ(name(static_cast<DType>(4)), "?");
  EXPECT_STREQ(name(static_cast<OpKind>(255)), "?");
  EXPECT_STREQ(name(static_cast<Quant>(6)), "?");
  EXPECT_STREQ(name(static_cast<Code>(200)), "?");
}

TEST(StatusTest, OkIsShort) {
  EXPECT_TRUE(Status{}.ok());
  EXPECT_EQ(Status{}.message(), "ok");
  EXPECT_NO_THROW(Status{}.or_throw());
}

TEST(StatusTest, TimeoutNamesPeerWordAndAllWhoAreMissing) {
  Status status = dispatch_status(Code::timeout);
  status.peer = 3;
  status.word = Word::pub;
  status.seen = 10;
  status.expected = 12;
  status.missing = 0b101000;
  EXPECT_EQ(status.message(),
            "timeout: rank 1: dispatch of epoch 12 waits for rank 3: pub is 10, needs 12 (missing "
            "ranks: 3,5)");
}

TEST(StatusTest, TheHighestRankIsListedToo) {
  Status status = dispatch_status(Code::peer_lost);
  status.peer = 63;
  status.what = "died";
  status.missing = std::uint64_t{1} << 63 | 1;
  EXPECT_EQ(status.message(),
            "peer_lost: rank 1: dispatch of epoch 12: rank 63 is gone: died (lost ranks: 0,63)");
}

TEST(StatusTest, MismatchNamesBothValuesAndRanks) {
  Status status = dispatch_status(Code::mismatch);
  status.peer = 2;
  status.what = "hidden";
  status.expected = 64;
  status.seen = 128;
  EXPECT_EQ(status.message(),
            "mismatch: rank 1: dispatch of epoch 12: hidden is 64 on rank 1 and 128 on rank 2");
}

TEST(StatusTest, DifferentOperationsAreNamed) {
  Status status = dispatch_status(Code::mismatch);
  status.peer = 2;
  status.what = "operation kind";
  status.expected = static_cast<std::uint64_t>(OpKind::dispatch);
  status.seen = static_cast<std::uint64_t>(OpKind::combine);
  EXPECT_EQ(status.message(),
            "mismatch: rank 1: dispatch of epoch 12: the operation is a dispatch on rank 1 and a "
            "combine on rank 2");
}

TEST(StatusTest, TheOtherCodes) {
  Status status = dispatch_status(Code::corrupt);
  status.peer = 2;
  status.what = "entry token";
  status.seen = 9;
  status.expected = 4;
  EXPECT_EQ(status.message(),
            "corrupt: rank 1: dispatch of epoch 12: rank 2 published entry token 9, allowed 4");
  status.code = Code::no_capacity;
  status.what = "rows to one rank";
  EXPECT_EQ(status.message(),
            "no_capacity: rank 1: dispatch of epoch 12: rows to one rank is 9, at most 4");
  status.code = Code::slot_busy;
  status.what = "the slot is leased";
  EXPECT_EQ(status.message(),
            "slot_busy: rank 1: dispatch of epoch 12: the slot is leased "
            "(CommunicatorOptions::slots is 4)");
  status.expected = 0;
  EXPECT_EQ(status.message(), "slot_busy: rank 1: dispatch of epoch 12: the slot is leased");
  status.expected = 4;
  status.code = Code::not_ready;
  status.word = Word::done;
  EXPECT_EQ(status.message(),
            "not_ready: rank 1: dispatch of epoch 12: rank 2: done is 9, needs 4");
  status.peer = -1;
  EXPECT_EQ(status.message(), "not_ready: rank 1: dispatch of epoch 12: the slot is leased");
}

TEST(StatusTest, BecomesAnExceptionWithItsMessage) {
  Status status = dispatch_status(Code::slot_busy);
  status.what = "the slot is leased";
  try {
    status.or_throw();
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::status);
    EXPECT_EQ(error.what(), status.message());
  }
}

}  // namespace
}  // namespace ubep
