// What every protocol of pushed rows must do (src/protocol/row_protocol.hpp): rows arrive right in
// every layout, with ranks that are threads or processes, and exactly what it states is put. In
// virtual time, on memory that tears and reorders: tests/simulation/protocol_test.cpp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>

#include "protocol/protocols.hpp"
#include "protocol/sentinel.hpp"
#include "support/cases.hpp"
#include "support/random.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"
#ifdef UBEP_HAVE_SIM
#include "engine/engine_impl.hpp"
#include "sim/world.hpp"
#endif

namespace ubep::test {
namespace {

std::string identifier(Protocol protocol) {
  std::string text = name(protocol);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

std::vector<Protocol> every_protocol() {
  std::vector<Protocol> ids;
  for (const RowProtocol* protocol : all_protocols()) ids.push_back(protocol->id());
  return ids;
}

class ProtocolTest : public testing::TestWithParam<std::tuple<Protocol, RankKind>> {
 protected:
  static Protocol protocol() { return std::get<0>(GetParam()); }
  static RankKind kind() { return std::get<1>(GetParam()); }
  static CommunicatorOptions options(const Problem& problem, int checksum_rows = 0) {
    CommunicatorOptions options = options_for(problem);
    options.protocol = protocol();
    if (protocol() == Protocol::checksum) options.checksum_rows = checksum_rows;
    return options;
  }
  // Some rounds, more than there are slots.
  static void run(const Problem& problem, const DispatchOptions& dispatch, int checksum_rows = 0) {
    run_ranks(kind(), problem.num_ranks(), [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, options(problem, checksum_rows));
      Worker worker(problem, bootstrap.rank, dispatch);
      for (int round = 0; round < 5; ++round) ASSERT_EQ(worker.round(comm), "") << round;
    });
  }
  static Problem uneven(Layout layout, std::uint64_t seed) {
    Problem problem = make_problem({.ranks = 3, .hidden = 50, .layout = layout, .seed = seed});
    Random random(seed);
    fill_inputs(problem, 20, random);
    problem.ranks[seed % 3] = {};
    if (layout == Layout::expert_padded) problem.expert_capacity = 3 * 20 * problem.topk;
    return problem;
  }
};

TEST_P(ProtocolTest, RowsOfEveryLayoutAndSizeArrive) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    for (const int hidden : {1, 6, 7, 60, 240, 241, 500}) {
      SCOPED_TRACE(testing::Message() << name(layout) << ", hidden " << hidden);
      run(make_problem({.ranks = 2, .tokens = 9, .hidden = hidden, .layout = layout}),
          {.path = Path::push});
    }
  }
}

TEST_P(ProtocolTest, UnevenTokensAndARankWithNone) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
      SCOPED_TRACE(testing::Message() << name(layout) << ", seed " << seed);
      run(uneven(layout, seed), {.path = Path::push}, static_cast<int>(seed) - 1);
    }
  }
}

TEST_P(ProtocolTest, InPlaceAndContiguous) {
  const Problem problem = make_problem({.ranks = 3, .layout = Layout::rank_major});
  run(problem, {.path = Path::push, .contiguous = true});
  run(problem, {.path = Path::push, .in_place = true});
  run(make_problem({.ranks = 3, .layout = Layout::expert_major}),
      {.path = Path::push, .in_place = true});
}

// A source's path is its own affair; bsp has flags of its own, in the same inbox.
TEST_P(ProtocolTest, PathsMayDiffer) {
  const Problem problem = make_problem({.ranks = 3, .layout = Layout::rank_major});
  const Problem by_expert = make_problem({.ranks = 3, .layout = Layout::expert_major});
  run_ranks(kind(), 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options(problem, 1));
    const Path paths[] = {Path::push, Path::pull, Path::read};
    for (int round = 0; round < 6; ++round) {
      const auto turn = static_cast<std::size_t>(bootstrap.rank + round) % 3;
      Worker worker(problem, bootstrap.rank, {.path = paths[turn]});
      ASSERT_EQ(worker.round(comm), "") << round;
      Worker bsp(by_expert, bootstrap.rank, {.path = Path::bsp});
      ASSERT_EQ(bsp.round(comm), "") << round;
      Worker push(by_expert, bootstrap.rank, {.path = turn == 0 ? Path::pull : Path::push});
      ASSERT_EQ(push.round(comm), "") << round;
    }
  });
}

// Whoever gives a dispatch up early leaves rows on their way into slots that are used again.
TEST_P(ProtocolTest, RowsOfAReleasedDispatchDoNotComeBack) {
  Problem problem = make_problem({.ranks = 2, .tokens = 12, .layout = Layout::expert_major});
  Problem other =
      make_problem({.ranks = 2, .tokens = 12, .layout = Layout::expert_major, .seed = 99});
  run_ranks(kind(), 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options(problem));
    for (int round = 0; round < 20; ++round) {
      Worker given_up(other, bootstrap.rank, {.path = Path::push});
      const Status status = given_up.start_dispatch_when_ready(comm);
      ASSERT_TRUE(status.ok()) << status.message();
      if (round % 2 == bootstrap.rank) (void)comm.step();
      comm.release(given_up.handle);
      Worker worker(problem, bootstrap.rank, {.path = Path::push});
      ASSERT_EQ(worker.round(comm), "") << round;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ProtocolTest,
                         testing::Combine(testing::ValuesIn(every_protocol()),
                                          testing::Values(RankKind::threads, RankKind::processes)),
                         [](const auto& test) {
                           return identifier(std::get<0>(test.param)) + "_" +
                                  name(std::get<1>(test.param));
                         });

// Rows that look as if nothing had come, in both slots' ways. UBEP_OPERATIONS: how often.
TEST(SentinelTest, PayloadsFullOfSentinelsArrive) {
  const char* text = std::getenv("UBEP_OPERATIONS");
  const int operations = text == nullptr ? 1000 : std::atoi(text);
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    Problem problem = make_problem({.ranks = 2, .tokens = 8, .hidden = 16, .layout = layout});
    Random random(7);
    for (RankInput& input : problem.ranks) {
      for (std::size_t at = 0; at + 8 <= input.x.size(); at += 8) {
        if (at / 32 % 4 == 3) continue;  // a row without
        const std::uint64_t word = Sentinel::word(random.below(2));
        if (at / 32 % 4 == 2 && !random.one_in(4)) continue;
        std::memcpy(input.x.data() + at, &word, 8);
      }
    }
    run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
      CommunicatorOptions options = options_for(problem);
      options.protocol = Protocol::sentinel;
      Communicator comm = Communicator::create(bootstrap, options);
      Worker worker(problem, bootstrap.rank, {.path = Path::push});
      for (int i = 0; i < operations / 2; ++i) ASSERT_EQ(worker.round(comm), "") << i;
    });
  }
}

TEST(ProtocolAgreementTest, RanksMustAgree) {
  const Problem problem = make_problem({.ranks = 2});
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.protocol = bootstrap.rank == 0 ? Protocol::token_flag_16 : Protocol::sentinel;
    try {
      const Communicator comm = Communicator::create(bootstrap, options);
      ADD_FAILURE() << "created";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("protocol"), std::string::npos) << error.what();
    }
  });
}

#ifdef UBEP_HAVE_SIM

// A simulated fabric that counts what is put into inboxes.
class CountingFabric {
 public:
  explicit CountingFabric(sim::SimFabric& fabric)
      : f_(fabric), costs(static_cast<std::size_t>(fabric.size())) {}

  const FabricFacts& facts() const { return f_.facts(); }
  int rank() const { return f_.rank(); }
  int size() const { return f_.size(); }
  const std::byte* acquire(int rank, Range range) { return f_.acquire(rank, range); }
  void release(int rank, Range range) { f_.release(rank, range); }
  void abandon(int rank, Range range) { f_.abandon(rank, range); }
  void prepare(Range range) { f_.prepare(range); }
  std::byte* claim(Range range) { return f_.claim(range); }
  void commit(Range range, Store store) { f_.commit(range, store); }
  void replicate(int rank, std::span<const Range> ranges) { f_.replicate(rank, ranges); }
  std::byte* inbox(Range range) { return f_.inbox(range); }
  const std::byte* inbox_of(int rank, Range range) { return f_.inbox_of(rank, range); }
  std::byte* claim_at(int rank, Range range) { return f_.claim_at(rank, range); }
  void commit_at(int rank, Range range, Store store) {
    MessageCost& cost = costs[static_cast<std::size_t>(rank)];
    ++cost.puts;
    cost.put_bytes += range.bytes;
    f_.commit_at(rank, range, store);
  }
  std::byte* incoming(int source, Range range) { return f_.incoming(source, range); }
  void taken(int source, Range range) { f_.taken(source, range); }
  bool flushed(int rank) { return f_.flushed(rank); }
  std::uint64_t load_flag(int rank, std::uint64_t offset) const {
    return f_.load_flag(rank, offset);
  }
  void store_flag(std::uint64_t offset, std::uint64_t value) { f_.store_flag(offset, value); }
  void signal(int rank, std::uint64_t offset, std::uint64_t value) {
    ++costs[static_cast<std::size_t>(rank)].signals;
    f_.signal(rank, offset, value);
  }
  void order(Ordering ordering) { f_.order(ordering); }
  void post() { f_.post(); }
  int progress() { return f_.progress(); }
  void work(Work work) { f_.work(work); }
  PeerState peer_state(int rank) const { return f_.peer_state(rank); }
  void set_state(PeerState state) { f_.set_state(state); }

 private:
  sim::SimFabric& f_;

 public:
  std::vector<MessageCost> costs;  // [R]
};

class ProtocolCostTest : public testing::TestWithParam<Protocol> {
 protected:
  static constexpr int kHidden = 595;
  static constexpr std::uint64_t kRowBytes = 2 * kHidden;

  static GroupConfig config(int checksum_rows) {
    GroupConfig config;
    config.size = 3;
    config.max_tokens = 11;
    config.max_topk = 3;
    config.max_row_bytes = 1200;
    config.max_stride = round_up(config.max_row_bytes, kLineBytes);
    config.push = true;
    config.protocol = GetParam();
    config.checksum_rows = checksum_rows;
    config.experts = ExpertMap(block_map(7, 3), 3);
    return config;
  }

  static sim::WorldOptions world_of(const GroupConfig& group) {
    sim::WorldOptions options;
    options.ranks = group.size;
    options.has_links = false;
    options.pod.tiers = {{"all", group.size, 100 * sim::kNanosecond, 0}};
    options.pod.lane.poll = 10 * sim::kNanosecond;
    for (int r = 0; r < group.size; ++r) {
      options.memory.segment_bytes.push_back(SegmentLayout(group, r).bytes());
      options.memory.inbox_bytes.push_back(SegmentLayout(group, r).inbox_bytes());
    }
    return options;
  }

  // One dispatch of a rank; what it put is what its protocol states.
  static void dispatch_and_compare(sim::SimFabric& real, const GroupConfig& group, Layout layout) {
    CountingFabric fabric(real);
    EngineImpl<CountingFabric> engine(fabric, {.config = group, .tile_bytes = 2000});
    HandleState handle;
    Random random(static_cast<std::uint64_t>(real.rank()));
    const int tokens = 11 - 5 * real.rank();
    const std::vector<std::byte> x(static_cast<std::size_t>(tokens) * kRowBytes);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < tokens * 3; ++i) ids.push_back(random.below(8) - 1);
    const std::vector<float> weights(ids.size(), 1.0F);
    const RoutingView routing{.topk_idx = ids,
                              .topk_weights = weights,
                              .num_tokens = static_cast<std::uint32_t>(tokens),
                              .topk = 3};
    Status status;
    do {
      status = engine.start_dispatch(ConstRows(x.data(), tokens, kHidden, DType::bf16), routing,
                                     {.layout = layout, .path = Path::push}, handle);
    } while (status.code == Code::not_ready);
    ASSERT_TRUE(status.ok()) << status.message();
    // acquires: nothing; one lane.
    while (handle.state.load_acquire() != HandleState::complete) (void)engine.step(0, 1);
    for (std::size_t owner = 0; owner < fabric.costs.size(); ++owner) {
      const MessageCost& done = fabric.costs[owner];
      const MessageCost stated = find_protocol(GetParam())
                                     .message_cost(handle.routed->outgoing[owner].num_rows(),
                                                   kRowBytes, group.checksum_rows);
      EXPECT_EQ(done.puts, stated.puts);
      EXPECT_EQ(done.put_bytes, stated.put_bytes);
      EXPECT_EQ(done.signals, stated.signals);
    }
    engine.release(handle);
  }
};

TEST_P(ProtocolCostTest, IsWhatIsDone) {
  for (const int checksum_rows : {0, 1, 4}) {
    const GroupConfig group = config(checksum_rows);
    for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
      sim::World world(world_of(group));
      for (int r = 0; r < group.size; ++r) {
        world.start(r, [&, r, layout] { dispatch_and_compare(world.fabric(r), group, layout); });
      }
      EXPECT_TRUE(world.run());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ProtocolCostTest, testing::ValuesIn(every_protocol()),
                         [](const auto& test) { return identifier(test.param); });

class NarrowTagTest : public ProtocolCostTest {
 protected:
  // Whether anything but zeros is left in the windows or checksums of slot 1 after a dispatch.
  static bool leaves_tags(std::uint64_t scrub_every) {
    const GroupConfig group = config(0);
    sim::World world(world_of(group));
    int left = 0;
    for (int r = 0; r < group.size; ++r) {
      world.start(r, [&, r] {
        EngineImpl<sim::SimFabric> engine(world.fabric(r),
                                          {.config = group, .scrub_every = scrub_every});
        HandleState handle;
        const std::vector<std::byte> x(4 * kRowBytes, std::byte{1});
        const std::vector<std::int32_t> ids{0, 3, 5, 1, 4, 6, 2, 3, 6, 0, 4, 5};
        const std::vector<float> weights(ids.size(), 1.0F);
        const Status status = engine.start_dispatch(
            ConstRows(x.data(), 4, kHidden, DType::bf16),
            {.topk_idx = ids, .topk_weights = weights, .num_tokens = 4, .topk = 3},
            {.layout = Layout::expert_major, .path = Path::push}, handle);
        ASSERT_TRUE(status.ok()) << status.message();
        // acquires: nothing; one lane.
        while (handle.state.load_acquire() != HandleState::complete) (void)engine.step(0, 1);
        const SegmentLayout layout(group, r);
        const Range tags = GetParam() == Protocol::checksum ? layout.checksums(handle.slot)
                                                            : layout.windows(handle.slot);
        const std::byte* bytes = world.fabric(r).inbox(tags);
        left +=
            std::any_of(bytes, bytes + tags.bytes, [](std::byte b) { return b != std::byte{}; });
        engine.release(handle);
      });
    }
    EXPECT_TRUE(world.run());
    EXPECT_TRUE(left == 0 || left == group.size);
    return left != 0;
  }
};

// Before a tag can come again.
TEST_P(NarrowTagTest, OldTagsAreWipedOut) {
  EXPECT_TRUE(leaves_tags(2));
  EXPECT_FALSE(leaves_tags(1));
}

INSTANTIATE_TEST_SUITE_P(All, NarrowTagTest,
                         testing::Values(Protocol::token_flag_16, Protocol::checksum),
                         [](const auto& test) { return identifier(test.param); });

// What a fabric does not promise is not relied on: set-up says so.
TEST(ProtocolRefusalTest, NamesProtocolAndFabric) {
  GroupConfig group;
  group.size = 1;
  group.push = true;
  group.experts = ExpertMap({0}, 1);
  for (const RowProtocol* protocol : all_protocols()) {
    group.protocol = protocol->id();
    for (const std::uint32_t unit : {8U, 64U, 512U}) {
      sim::WorldOptions options;
      options.pod.tiers = {{"all", 1, 0, 0}};
      options.memory.weak = true;
      options.memory.unit = unit;
      options.memory.segment_bytes = {SegmentLayout(group, 0).bytes()};
      options.memory.inbox_bytes = {SegmentLayout(group, 0).inbox_bytes()};
      sim::World world(options);
      const bool tagged = protocol->row_grid() != kLineBytes;
      std::string error;
      try {
        const EngineImpl<sim::SimFabric> engine(world.fabric(0), {.config = group});
      } catch (const Error& e) {
        error = e.what();
        EXPECT_EQ(e.code(), ErrorCode::setup);
      }
      EXPECT_EQ(error.empty(), !tagged || unit >= protocol->row_grid()) << error;
      if (error.empty()) continue;
      EXPECT_NE(error.find(name(protocol->id())), std::string::npos) << error;
      EXPECT_NE(error.find(std::to_string(unit)), std::string::npos) << error;
    }
  }
}

#endif

}  // namespace
}  // namespace ubep::test
