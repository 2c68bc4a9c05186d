// The engine against a peer that is written by hand, word for word: what a damaged or foreign rank
// may publish is found before it is used, and ends the communicator with a status that says what.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/entry.hpp"
#include "engine/engine.hpp"
#include "engine/handle_state.hpp"
#include "protocol/op_line.hpp"
#include "protocol/segment_layout.hpp"
#include "sim/engine_sim.hpp"
#include "sim/world.hpp"

namespace ubep::test {
namespace {

constexpr int kTopk = 2;
constexpr std::size_t kTokens = 3;
constexpr std::size_t kHidden = 8;
constexpr int kSlot = 1;  // of epoch 1

GroupConfig two_ranks() {
  GroupConfig config;
  config.size = 2;
  config.slots = 2;
  config.max_tokens = 4;
  config.max_topk = kTopk;
  config.max_stride = 64;
  config.experts = ExpertMap({0, 0, 1, 1}, 2);
  return config;
}

sim::WorldOptions world_options(bool mapped) {
  using sim::kNanosecond;
  sim::WorldOptions options;
  options.ranks = 2;
  options.mapped = mapped;
  options.has_links = false;
  options.pod.tiers = {{"all", 2, 50 * kNanosecond, 0}};
  options.pod.lane.poll = 10 * kNanosecond;
  for (int r = 0; r < 2; ++r) {
    options.memory.segment_bytes.push_back(SegmentLayout(two_ranks(), r).bytes());
  }
  options.memory.weak = true;
  options.memory.delay = 300 * kNanosecond;
  return options;
}

// Rank 1, by hand. Everything it sends is right until a test changes it.
struct ForgedPeer {
  sim::SimFabric& fabric;
  SegmentLayout layout{two_ranks(), 1};
  OpLine dispatch, combine;
  std::uint64_t pub = 1;
  std::uint64_t out = 2;
  // One token to each of rank 0's experts.
  std::vector<std::uint32_t> offsets{0, 2, 2};
  std::vector<Entry> entries{{0, 0, 0, 1.0F}, {1, 1, 1, 1.0F}};
  std::vector<std::uint32_t> bases{0, 3};  // where rank 0's rows lie: expert 2's, expert 3's

  explicit ForgedPeer(sim::SimFabric& peer) : fabric(peer) {
    dispatch.seq = dispatch.epoch = dispatch.origin = 1;
    dispatch.kind = OpKind::dispatch;
    dispatch.layout = Layout::expert_major;
    dispatch.reduction = Reduction::exact;
    dispatch.hidden = kHidden;
    dispatch.tokens = 2;
    dispatch.topk = kTopk;
    combine = dispatch;
    combine.seq = 2;
    combine.kind = OpKind::combine;
  }

  void write(Range range, const void* bytes) const {
    std::memcpy(fabric.claim(range), bytes, range.bytes);
    fabric.commit(range, Store::near);
  }
  void start(const OpLine& line) const {
    write({layout.op(line.seq), sizeof(line)}, &line);
    fabric.store_flag(layout.op(line.seq), line.seq);
  }
  void send_dispatch() const {
    start(dispatch);
    write(layout.offsets(kSlot), offsets.data());
    if (!entries.empty()) write(layout.entries(kSlot, 0, entries.size()), entries.data());
    const std::vector<std::byte> zeros(128);
    write(layout.x(kSlot, 64, 0, 2), zeros.data());
    if (pub != 0) fabric.store_flag(layout.pub(kSlot), pub);
  }
  void send_combine() const {
    start(combine);
    write(layout.bases(kSlot, 0, 2), bases.data());
    const std::vector<std::byte> zeros(layout.y_area_bytes());
    write(layout.y(kSlot, 64, 0, two_ranks().max_rows(1)), zeros.data());
    fabric.store_flag(layout.out(kSlot), out);
  }
};

// On both kinds of memory, none of which shows bytes before it must.
class ForgedPeerTest : public testing::TestWithParam<bool> {
 protected:
  ForgedPeerTest() {
    engine_ = sim::make_sim_engine(world_.fabric(0), {.config = two_ranks(), .store = Store::near});
  }

  // Rank 0 sends every token to one expert of its own and one of rank 1.
  void start_dispatch() {
    topk_idx_ = {0, 2, 1, 3, 0, 3};
    const RoutingView routing{
        .topk_idx = topk_idx_, .topk_weights = weights_, .num_tokens = kTokens, .topk = kTopk};
    const DispatchOptions options{
        .layout = Layout::expert_major, .path = Path::pull, .reduction = Reduction::exact};
    ASSERT_TRUE(engine_->start_dispatch(rows(x_), routing, options, handle_).ok());
  }
  Status finish() {
    for (int i = 0; i < 2000; ++i) {
      (void)engine_->step(0, 1);
      engine_->look_for_losses();
      // acquires: the status; everything happens on this thread.
      if (handle_.state.load_acquire() == HandleState::complete) return handle_.status;
    }
    ADD_FAILURE() << engine_->waits_for(&handle_).message();
    return handle_.status;
  }
  Status dispatch() {
    start_dispatch();
    peer_.send_dispatch();
    return finish();
  }
  Status combine() {
    std::memset(handle_.output.data, 0, static_cast<std::size_t>(handle_.output.num_rows) * 64);
    EXPECT_TRUE(engine_->start_combine(handle_, {.out = rows(out_)}).ok());
    peer_.send_combine();
    return finish();
  }
  static Rows rows(std::vector<std::byte>& memory) {
    return {memory.data(), kTokens, kHidden, DType::bf16};
  }

  // Found, told to the peer, the end of all further calls, and nothing is left under way.
  void expect_end(const Status& status, Code code, const char* what) {
    EXPECT_EQ(status.code, code) << status.message();
    EXPECT_EQ(status.peer, 1);
    EXPECT_NE(std::string(status.what).find(what), std::string::npos) << status.message();
    for (int i = 0; i < 100; ++i) (void)world_.fabric(1).load_flag(0, peer_.layout.out(0));
    EXPECT_EQ(world_.fabric(1).peer_state(0), PeerState::failed);
    HandleState another;
    EXPECT_EQ(engine_->start_cached_dispatch(rows(x_), handle_, another).code, code);
    EXPECT_EQ(world_.fabric(0).held(), "");
  }

  sim::World world_{world_options(GetParam())};
  ForgedPeer peer_{world_.fabric(1)};
  HandleState handle_;
  std::shared_ptr<Engine> engine_;
  std::vector<std::byte> x_ = std::vector<std::byte>(kTokens * kHidden * 2);
  std::vector<std::byte> out_ = x_;
  std::vector<std::int32_t> topk_idx_;
  std::vector<float> weights_ = std::vector<float>(kTokens * kTopk, 0.5F);
};

INSTANTIATE_TEST_SUITE_P(Memory, ForgedPeerTest, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "mapped" : "fetched");
});

// Otherwise the tests below could find anything.
TEST_P(ForgedPeerTest, AHonestForgeryPasses) {
  const Status dispatched = dispatch();
  ASSERT_TRUE(dispatched.ok()) << dispatched.message();
  EXPECT_EQ(handle_.received.num_rows, 5);
  const Status combined = combine();
  EXPECT_TRUE(combined.ok()) << combined.message();
  EXPECT_EQ(handle_.valid, (std::vector<std::uint8_t>{1, 1, 1}));
  EXPECT_EQ(world_.fabric(0).held(), "");
}

TEST_P(ForgedPeerTest, AnOpLineThatNoRankWrites) {
  peer_.dispatch.kind = static_cast<OpKind>(9);
  expect_end(dispatch(), Code::corrupt, "operation kind");
}

TEST_P(ForgedPeerTest, MoreTokensThanDeclared) {
  peer_.dispatch.tokens = 5;
  expect_end(dispatch(), Code::corrupt, "tokens");
}

TEST_P(ForgedPeerTest, AnotherShape) {
  peer_.dispatch.hidden = 16;
  const Status status = dispatch();
  EXPECT_EQ(status.expected, 8U);
  EXPECT_EQ(status.seen, 16U);
  expect_end(status, Code::mismatch, "hidden");
}

TEST_P(ForgedPeerTest, AnotherOperation) {
  peer_.dispatch.kind = OpKind::combine;
  expect_end(dispatch(), Code::mismatch, "operation kind");
}

TEST_P(ForgedPeerTest, AnOpWordFromTheFuture) {
  peer_.dispatch.seq = 9;  // the same place, one round later
  expect_end(dispatch(), Code::corrupt, "");
}

TEST_P(ForgedPeerTest, AnEpochFromTheFuture) {
  peer_.pub = 3;
  expect_end(dispatch(), Code::corrupt, "");
}

TEST_P(ForgedPeerTest, OffsetsThatGoBack) {
  peer_.offsets = {2, 1, 2};
  expect_end(dispatch(), Code::corrupt, "record offset");
}

TEST_P(ForgedPeerTest, MoreEntriesThanTokensCanHave) {
  peer_.offsets = {0, 5, 5};
  expect_end(dispatch(), Code::corrupt, "record offset");
}

TEST_P(ForgedPeerTest, AnOffsetBeyondAll) {
  peer_.offsets = {0, 0xFFFFFFFF, 0xFFFFFFFF};
  expect_end(dispatch(), Code::corrupt, "record offset");
}

TEST_P(ForgedPeerTest, EntriesOfTokensThatAreNot) {
  peer_.entries[1].token = 2;
  expect_end(dispatch(), Code::corrupt, "entry token");
}

TEST_P(ForgedPeerTest, EntriesForExpertsElsewhere) {
  peer_.entries[0].expert = 2;
  expect_end(dispatch(), Code::corrupt, "entry expert");
}

TEST_P(ForgedPeerTest, EntriesOutOfOrder) {
  std::swap(peer_.entries[0], peer_.entries[1]);
  expect_end(dispatch(), Code::corrupt, "entry order");
}

// Announced, but never written: bytes of no meaning.
TEST_P(ForgedPeerTest, ARecordThatWasNotWritten) {
  peer_.offsets = {0, 3, 3};
  peer_.dispatch.tokens = 4;
  expect_end(dispatch(), Code::corrupt, "entry");
}

TEST_P(ForgedPeerTest, BasesOutsideTheOutputs) {
  ASSERT_TRUE(dispatch().ok());
  peer_.bases[1] = static_cast<std::uint32_t>(two_ranks().max_rows(1)) - 1;
  expect_end(combine(), Code::corrupt, "base");
}

TEST_P(ForgedPeerTest, ABaseThatWouldWrap) {
  ASSERT_TRUE(dispatch().ok());
  peer_.bases[0] = 0xFFFFFFFF;
  expect_end(combine(), Code::corrupt, "base");
}

TEST_P(ForgedPeerTest, ACombineOfAnotherEpoch) {
  ASSERT_TRUE(dispatch().ok());
  peer_.combine.epoch = 2;
  expect_end(combine(), Code::mismatch, "epoch");
}

// The peer gave its lease back and will never put out anything.
TEST_P(ForgedPeerTest, ACombineThatThePeerReleased) {
  ASSERT_TRUE(dispatch().ok());
  peer_.out = 3;
  expect_end(combine(), Code::mismatch, "released");
}

TEST_P(ForgedPeerTest, APeerThatFailedIsLost) {
  peer_.pub = 0;
  start_dispatch();
  peer_.send_dispatch();
  peer_.fabric.set_state(PeerState::failed);
  const Status status = finish();
  EXPECT_EQ(status.code, Code::peer_lost);
  EXPECT_STREQ(status.what, "failed");
  EXPECT_EQ(handle_.received.sources, 1U);
  EXPECT_EQ(handle_.received.num_rows, 3);
}

}  // namespace
}  // namespace ubep::test
