// Each argument that can never be right throws, and the text names the argument, the value seen and
// the value expected. Calls in the wrong state throw misuse.
#include <gtest/gtest.h>

#include <concepts>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "support/worker.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {
namespace {

// A communicator of one rank, with four experts, four tokens of 24 and top-k 2.
class Alone {
 public:
  Alone()
      : problem(make_problem({.ranks = 1, .experts_per_rank = 4, .tokens = 4})),
        comm(Communicator::create(ThreadGroup(1).bootstrap(0), options())),
        worker(problem, 0) {}

  CommunicatorOptions options() const {
    CommunicatorOptions o = options_for(problem);
    o.max_topk = 3;
    o.push = o.bsp = false;
    return o;
  }

  Problem problem;
  Communicator comm;
  Worker worker;
};

struct Named {
  std::string name;
};
template <std::derived_from<Named> T>
void PrintTo(const T& named, std::ostream* out) {  // NOLINT(readability-identifier-naming): gtest
  *out << named.name;
}
struct CaseName {
  template <class Info>
  std::string operator()(const Info& instance) const {
    return instance.param.name;
  }
};

// --- creation ---

struct BadOptions : Named {
  Parts parts;
  std::function<void(CommunicatorOptions&, Bootstrap&)> change;
};

class OptionsMisuseTest : public testing::TestWithParam<BadOptions> {};

TEST_P(OptionsMisuseTest, Throws) {
  CommunicatorOptions options{.num_experts = 4, .max_tokens = 4, .max_hidden = 24};
  Bootstrap bootstrap = ThreadGroup(1).bootstrap(0);
  GetParam().change(options, bootstrap);
  expect_error(ErrorCode::invalid_argument, GetParam().parts,
               [&] { Communicator::create(bootstrap, options); });
  expect_error(ErrorCode::invalid_argument, GetParam().parts,
               [&] { (void)Communicator::plan_memory(options, bootstrap.rank, bootstrap.size); });
}

INSTANTIATE_TEST_SUITE_P(
    Options, OptionsMisuseTest,
    testing::Values(
        BadOptions{{"ProtocolBeyondTheLast"},
                   {"protocol is 8", "0..7"},
                   [](auto& o, auto&) { o.protocol = static_cast<Protocol>(8); }},
        BadOptions{{"ProtocolWithoutPush"},
                   {"protocol", "push"},
                   [](auto& o, auto&) {
                     o.push = o.bsp = false;
                     o.protocol = Protocol::sentinel;
                   }},
        BadOptions{{"ChecksumRowsOfAnotherProtocol"},
                   {"checksum_rows", "Protocol::checksum"},
                   [](auto& o, auto&) { o.checksum_rows = 3; }},
        BadOptions{{"NoExperts"},
                   {"num_experts", "0", "1..65535"},
                   [](auto& o, auto&) { o.num_experts = 0; }},
        BadOptions{{"TooManyExperts"},
                   {"num_experts", "65536", "65535"},
                   [](auto& o, auto&) { o.num_experts = 65536; }},
        BadOptions{{"MapTooShort"},
                   {"expert_rank", "3", "4"},
                   [](auto& o, auto&) {
                     o.expert_rank = {0, 0, 0};
                   }},
        BadOptions{{"MapNamesNoRank"},
                   {"expert_rank", "[2]", "1", "0..0"},
                   [](auto& o, auto&) {
                     o.expert_rank = {0, 0, 1, 0};
                   }},
        BadOptions{{"MapNegative"},
                   {"expert_rank", "[3]", "-1", "0..0"},
                   [](auto& o, auto&) {
                     o.expert_rank = {0, 0, 0, -1};
                   }},
        BadOptions{{"NegativeTokens"},
                   {"max_tokens", "-1", "0"},
                   [](auto& o, auto&) { o.max_tokens = -1; }},
        BadOptions{
            {"NoHidden"}, {"max_hidden", "0", "1"}, [](auto& o, auto&) { o.max_hidden = 0; }},
        BadOptions{{"NoTopk"}, {"max_topk", "0", "1..64"}, [](auto& o, auto&) { o.max_topk = 0; }},
        BadOptions{
            {"TopkTooLarge"}, {"max_topk", "65", "1..64"}, [](auto& o, auto&) { o.max_topk = 65; }},
        BadOptions{{"NoSlots"}, {"slots", "0", "1..16"}, [](auto& o, auto&) { o.slots = 0; }},
        BadOptions{
            {"TooManySlots"}, {"slots", "17", "1..16"}, [](auto& o, auto&) { o.slots = 17; }},
        BadOptions{{"UnknownDtype"},
                   {"max_dtype", "9"},
                   [](auto& o, auto&) { o.max_dtype = static_cast<DType>(9); }},
        BadOptions{{"UnknownStore"},
                   {"store", "9"},
                   [](auto& o, auto&) { o.store = static_cast<Store>(9); }},
        BadOptions{{"RankTooLarge"}, {"rank", "1", "0..0"}, [](auto&, auto& b) { b.rank = 1; }},
        BadOptions{{"RankNegative"}, {"rank", "-1", "0..0"}, [](auto&, auto& b) { b.rank = -1; }},
        BadOptions{{"NoRanks"}, {"size", "0", "1..64"}, [](auto&, auto& b) { b.size = 0; }},
        BadOptions{{"TooManyRanks"}, {"size", "65", "1..64"}, [](auto&, auto& b) { b.size = 65; }}),
    CaseName());

TEST(BootstrapMisuseTest, NegativeTimeout) {
  CommunicatorOptions options{.num_experts = 4, .max_tokens = 4, .max_hidden = 24};
  options.timeout = std::chrono::milliseconds(-5);
  expect_error(ErrorCode::invalid_argument, {"timeout", "-5"},
               [&] { Communicator::create(ThreadGroup(1).bootstrap(0), options); });
}

TEST(BootstrapMisuseTest, AnotherSizeThanTheThreadGroups) {
  const CommunicatorOptions options{.num_experts = 4, .max_tokens = 4, .max_hidden = 24};
  Bootstrap bootstrap = ThreadGroup(1).bootstrap(0);
  bootstrap.size = 2;
  bootstrap.timeout = std::chrono::milliseconds(500);
  expect_error(ErrorCode::invalid_argument, {"size", "2", "1"},
               [&] { Communicator::create(bootstrap, options); });
}

TEST(BootstrapMisuseTest, WhatIsNoAddressOrPort) {
  const CommunicatorOptions options{.num_experts = 4, .max_tokens = 4, .max_hidden = 24};
  for (const char* address : {"a host", "host:1234", "tcp://host", "[::1]", "a,b", "host\n"}) {
    Bootstrap bootstrap{.job = "job"};
    bootstrap.address = address;
    expect_error(ErrorCode::invalid_argument, {"address is '", address, "UBEP_PORT"},
                 [&] { Communicator::create(bootstrap, options); });
  }
  Bootstrap threads = ThreadGroup(1).bootstrap(0);
  threads.address = "host";
  expect_error(ErrorCode::invalid_argument, {"address is 'host'", "threads"},
               [&] { Communicator::create(threads, options); });
  for (const int port : {-1, 65'536}) {
    Bootstrap bootstrap{.job = "job"};
    bootstrap.port = port;
    expect_error(ErrorCode::invalid_argument, {"port is", std::to_string(port), "0..65535"},
                 [&] { Communicator::create(bootstrap, options); });
  }
}

TEST(BootstrapMisuseTest, SizesOutsideTheRange) {
  for (const int size : {0, 65}) {
    const Parts parts{"size", std::to_string(size), "1..64"};
    expect_error(ErrorCode::invalid_argument, parts, [&] { ThreadGroup group(size); });
    expect_error(ErrorCode::invalid_argument, parts,
                 [&] { (void)fork_ranks(size, [](const Bootstrap&) { return 0; }); });
  }
}

// --- dispatch ---

struct DispatchInput {
  ConstRows x;
  Routing routing;
  DispatchOptions options;
  std::vector<std::int32_t> topk_idx;
};

struct BadDispatch : Named {
  Parts parts;
  std::function<void(DispatchInput&)> change;
};

class DispatchMisuseTest : public testing::TestWithParam<BadDispatch> {};

TEST_P(DispatchMisuseTest, Throws) {
  Alone alone;
  DispatchInput input{.x = alone.worker.x(), .routing = alone.worker.routing()};
  input.topk_idx.assign(input.routing.topk_idx.begin(), input.routing.topk_idx.end());
  input.routing.topk_idx = input.topk_idx;
  GetParam().change(input);
  Handle handle;
  expect_error(ErrorCode::invalid_argument, GetParam().parts, [&] {
    (void)alone.comm.start_dispatch(input.x, input.routing, input.options, handle);
  });
  expect_error(ErrorCode::invalid_argument, GetParam().parts,
               [&] { (void)alone.comm.dispatch(input.x, input.routing, input.options, handle); });
  EXPECT_FALSE(handle.holds_lease());
  EXPECT_EQ(alone.worker.round(alone.comm), "");
  EXPECT_EQ(alone.worker.handle.epoch(), 1U);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DispatchMisuseTest,
    testing::Values(
        BadDispatch{{"HiddenTooLarge"}, {"hidden", "25", "24"}, [](auto& in) { in.x.hidden = 25; }},
        BadDispatch{{"NoHidden"}, {"hidden", "0", "1"}, [](auto& in) { in.x.hidden = 0; }},
        BadDispatch{{"WideType"},
                    {"hidden", "24", "fp32", "12"},
                    [](auto& in) { in.x.dtype = DType::fp32; }},
        BadDispatch{
            {"UnknownDtype"}, {"dtype", "7"}, [](auto& in) { in.x.dtype = static_cast<DType>(7); }},
        BadDispatch{
            {"NegativeTokens"}, {"num_rows", "-1", "0"}, [](auto& in) { in.x.num_rows = -1; }},
        BadDispatch{{"StrideTooSmall"},
                    {"stride_bytes", "46", "48"},
                    [](auto& in) { in.x.stride_bytes = 46; }},
        BadDispatch{{"StrideNegative"},
                    {"stride_bytes", "-64", "48"},
                    [](auto& in) { in.x.stride_bytes = -64; }},
        BadDispatch{{"NoData"}, {"x.data", "null", "4"}, [](auto& in) { in.x.data = nullptr; }},
        BadDispatch{{"NoTopk"}, {"topk", "0", "1..3"}, [](auto& in) { in.routing.topk = 0; }},
        BadDispatch{{"TopkTooLarge"}, {"topk", "4", "1..3"}, [](auto& in) { in.routing.topk = 4; }},
        BadDispatch{{"IndicesTooFew"},
                    {"topk_idx", "7", "8"},
                    [](auto& in) { in.routing.topk_idx = in.routing.topk_idx.first(7); }},
        BadDispatch{{"WeightsTooFew"},
                    {"topk_weights", "7", "8"},
                    [](auto& in) { in.routing.topk_weights = in.routing.topk_weights.first(7); }},
        BadDispatch{{"ExpertTooLarge"},
                    {"topk_idx", "[2][1]", "4", "3"},
                    [](auto& in) { in.topk_idx[5] = 4; }},
        BadDispatch{{"ExpertTooSmall"},
                    {"topk_idx", "[3][0]", "-2", "-1"},
                    [](auto& in) { in.topk_idx[6] = -2; }}),
    CaseName());

INSTANTIATE_TEST_SUITE_P(
    Options, DispatchMisuseTest,
    testing::Values(
        BadDispatch{
            {"ReadOfExpertMajor"},
            {"path read", "rank_major"},
            [](auto& in) { in.options = {.layout = Layout::expert_major, .path = Path::read}; }},
        BadDispatch{{"PushWithoutInboxes"},
                    {"path push", "CommunicatorOptions::push"},
                    [](auto& in) { in.options = {.path = Path::push}; }},
        BadDispatch{
            {"BspWithoutWindows"},
            {"path bsp", "CommunicatorOptions::bsp"},
            [](auto& in) { in.options = {.layout = Layout::expert_major, .path = Path::bsp}; }},
        BadDispatch{{"AllgatherOfExpertMajor"},
                    {"path allgather", "rank_major"},
                    [](auto& in) {
                      in.options = {.layout = Layout::expert_major, .path = Path::allgather};
                    }},
        BadDispatch{{"PaddedWithoutCapacity"},
                    {"expert_padded", "CommunicatorOptions::expert_capacity"},
                    [](auto& in) { in.options = {.layout = Layout::expert_padded}; }},
        BadDispatch{
            {"CapacityOfExpertMajor"},
            {"expert_capacity", "3", "0"},
            [](auto& in) { in.options = {.layout = Layout::expert_major, .expert_capacity = 3}; }},
        BadDispatch{{"Topk1OnRead"},
                    {"topk1", "pull"},
                    [](auto& in) { in.options = {.path = Path::read, .topk1 = true}; }},
        BadDispatch{{"Topk1OfExpertMajor"},
                    {"topk1", "rank_major"},
                    [](auto& in) { in.options = {.layout = Layout::expert_major, .topk1 = true}; }},
        BadDispatch{{"InPlaceOnRead"},
                    {"in_place", "pull"},
                    [](auto& in) { in.options = {.path = Path::read, .in_place = true}; }},
        BadDispatch{{"InPlaceByOwner"},
                    {"in_place", "weighting"},
                    [](auto& in) {
                      in.options = {
                          .path = Path::pull, .weighting = Weighting::owner, .in_place = true};
                    }},
        BadDispatch{{"ContiguousOnRead"},
                    {"contiguous", "pull"},
                    [](auto& in) { in.options = {.path = Path::read, .contiguous = true}; }},
        BadDispatch{
            {"ContiguousOfExpertMajor"},
            {"contiguous", "rank_major"},
            [](auto& in) { in.options = {.layout = Layout::expert_major, .contiguous = true}; }},
        BadDispatch{{"MappedViewOnPull"},
                    {"mapped_view", "read"},
                    [](auto& in) { in.options = {.path = Path::pull, .mapped_view = true}; }},
        BadDispatch{{"OwnerOfExpertMajor"},
                    {"weighting", "rank_major"},
                    [](auto& in) {
                      in.options = {.layout = Layout::expert_major, .weighting = Weighting::owner};
                    }},
        BadDispatch{{"ExactOfRankMajor"},
                    {"reduction", "exact", "expert layouts"},
                    [](auto& in) { in.options = {.reduction = Reduction::exact}; }},
        BadDispatch{
            {"NoAlignment"},
            {"expert_alignment", "0", "1"},
            [](auto& in) { in.options = {.layout = Layout::expert_major, .expert_alignment = 0}; }},
        BadDispatch{{"NegativeAlignment"},
                    {"expert_alignment", "-8", "1"},
                    [](auto& in) {
                      in.options = {.layout = Layout::expert_major, .expert_alignment = -8};
                    }},
        BadDispatch{{"AlignmentOfRankMajor"},
                    {"expert_alignment", "8", "1"},
                    [](auto& in) { in.options = {.expert_alignment = 8}; }},
        BadDispatch{{"UnknownLayout"},
                    {"layout", "5"},
                    [](auto& in) { in.options.layout = static_cast<Layout>(5); }},
        BadDispatch{{"UnknownPath"},
                    {"path", "9"},
                    [](auto& in) { in.options.path = static_cast<Path>(9); }}),
    CaseName());

TEST(CachedMisuseTest, TheSameNumberOfTokens) {
  Alone alone;
  ASSERT_EQ(alone.worker.round(alone.comm), "");
  ConstRows x = alone.worker.x();
  x.num_rows = 3;
  Handle handle;
  expect_error(ErrorCode::invalid_argument, {"num_rows", "3", "4"},
               [&] { (void)alone.comm.start_dispatch(x, alone.worker.handle, handle); });
}

// --- combine ---

struct BadCombine : Named {
  Parts parts;
  std::function<void(CombineArgs&)> change;
};

class CombineMisuseTest : public testing::TestWithParam<BadCombine> {};

TEST_P(CombineMisuseTest, Throws) {
  Alone alone;
  ASSERT_TRUE(alone.worker.dispatch(alone.comm).ok());
  std::vector<std::byte> memory(4096);
  const std::int64_t received = alone.worker.handle.received().num_rows;
  CombineArgs args{.out = {memory.data(), 4, 24, DType::bf16},
                   .y = {memory.data(), received, 24, DType::bf16}};
  GetParam().change(args);
  expect_error(ErrorCode::invalid_argument, GetParam().parts,
               [&] { (void)alone.comm.start_combine(alone.worker.handle, args); });
  EXPECT_TRUE(alone.worker.handle.holds_lease());
  EXPECT_TRUE(alone.worker.combine(alone.comm).ok());
  EXPECT_EQ(alone.worker.out_difference(), "");
}

TEST(OutputMisuseTest, TheOutputsInPlaceAtAnotherStride) {
  Alone alone;
  ASSERT_TRUE(alone.worker.dispatch(alone.comm).ok());
  std::vector<std::byte> memory(4096);
  ConstRows y = alone.worker.handle.expert_output();
  y.stride_bytes += 64;
  const CombineArgs args{.out = {memory.data(), 4, 24, DType::bf16}, .y = y};
  expect_error(ErrorCode::invalid_argument, {"y.stride_bytes", "128", "64"},
               [&] { (void)alone.comm.start_combine(alone.worker.handle, args); });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CombineMisuseTest,
    testing::Values(
        BadCombine{{"TooFewTokens"},
                   {"out", "num_rows", "3", "4"},
                   [](auto& args) { args.out.num_rows = 3; }},
        BadCombine{{"AnotherHidden"},
                   {"out", "hidden", "23", "24"},
                   [](auto& args) { args.out.hidden = 23; }},
        BadCombine{{"AnotherDtype"},
                   {"out", "dtype", "fp16", "bf16"},
                   [](auto& args) { args.out.dtype = DType::fp16; }},
        BadCombine{{"StrideTooSmall"},
                   {"out", "stride_bytes", "47", "48"},
                   [](auto& args) { args.out.stride_bytes = 47; }},
        BadCombine{{"NoOut"}, {"out", "data", "null"}, [](auto& args) { args.out.data = nullptr; }},
        BadCombine{{"OutputsTooMany"},
                   {"y", "num_rows", "5", "4"},
                   [](auto& args) { args.y.num_rows = 5; }},
        BadCombine{
            {"OutputsHidden"}, {"y", "hidden", "32", "24"}, [](auto& args) { args.y.hidden = 32; }},
        BadCombine{{"OutputsDtype"},
                   {"out", "dtype", "bf16", "fp16", "y"},
                   [](auto& args) { args.y.dtype = DType::fp16; }},
        BadCombine{{"OutputsTooWide"},
                   {"y", "hidden", "24", "fp32", "12"},
                   [](auto& args) { args.y.dtype = DType::fp32; }},
        BadCombine{{"OutputsWithoutData"},
                   {"y", "data", "null", "4"},
                   [](auto& args) { args.y.data = nullptr; }}),
    CaseName());

// --- calls in the wrong state ---

TEST(StateMisuseTest, AnUnusedHandle) {
  Alone alone;
  Handle handle;
  std::vector<std::byte> memory(4096);
  const CombineArgs args{.out = {memory.data(), 4, 24, DType::bf16}};
  EXPECT_EQ(handle.epoch(), 0U);
  EXPECT_FALSE(handle.holds_lease());
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)handle.received(); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)handle.expert_output(); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)handle.row_weights(); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)handle.row_choices(); });
  expect_error(ErrorCode::misuse, {}, [&] { (void)handle.valid_tokens(); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)alone.comm.poll(handle); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)alone.comm.wait(handle); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)alone.comm.combine(handle, args); });
  expect_error(ErrorCode::misuse, {}, [&] {
    (void)alone.comm.start_dispatch(alone.worker.x(), handle, alone.worker.handle);
  });
  alone.comm.release(handle);  // nothing to end
}

// Rows of rank_major have several weights and choices.
TEST(StateMisuseTest, ListsOfRowsPerChoice) {
  Alone alone;
  ASSERT_TRUE(alone.worker.dispatch(alone.comm).ok());
  expect_error(ErrorCode::misuse, {"row_weights"},
               [&] { (void)alone.worker.handle.row_weights(); });
  expect_error(ErrorCode::misuse, {"row_choices"},
               [&] { (void)alone.worker.handle.row_choices(); });
  EXPECT_TRUE(alone.worker.combine(alone.comm).ok());
}

TEST(StateMisuseTest, CombineTwice) {
  Alone alone;
  ASSERT_EQ(alone.worker.round(alone.comm), "");
  std::vector<std::byte> memory(4096);
  const CombineArgs args{.out = {memory.data(), 4, 24, DType::bf16}};
  expect_error(ErrorCode::misuse, {"handle", "combine of epoch 1 has ended", "expected a dispatch"},
               [&] { (void)alone.comm.combine(alone.worker.handle, args); });
  expect_error(ErrorCode::misuse, {"handle", "its lease has ended"},
               [&] { (void)alone.worker.handle.received(); });
  EXPECT_EQ(alone.worker.out_difference(), "");
  EXPECT_EQ(alone.worker.round(alone.comm), "");
}

TEST(StateMisuseTest, DispatchIntoALeasedHandle) {
  Alone alone;
  ASSERT_TRUE(alone.worker.dispatch(alone.comm).ok());
  expect_error(ErrorCode::misuse, {"lease"}, [&] { (void)alone.worker.dispatch(alone.comm); });
  expect_error(ErrorCode::misuse, {"lease"}, [&] {
    (void)alone.comm.start_dispatch(alone.worker.x(), alone.worker.handle, alone.worker.handle);
  });
  EXPECT_EQ(alone.worker.received_difference(), "");
}

TEST(StateMisuseTest, AHandleOfAnotherCommunicator) {
  Alone one;
  Alone other;
  ASSERT_TRUE(one.worker.dispatch(one.comm).ok());
  std::vector<std::byte> memory(4096);
  const CombineArgs args{.out = {memory.data(), 4, 24, DType::bf16}};
  expect_error(ErrorCode::misuse, {"communicator"},
               [&] { (void)other.comm.combine(one.worker.handle, args); });
  expect_error(ErrorCode::misuse, {"communicator"}, [&] { other.comm.release(one.worker.handle); });
  expect_error(ErrorCode::misuse, {"communicator"},
               [&] { (void)other.comm.wait(one.worker.handle); });
  expect_error(ErrorCode::misuse, {"communicator"}, [&] {
    (void)other.comm.start_dispatch(one.worker.x(), one.worker.handle, other.worker.handle);
  });
  EXPECT_TRUE(one.worker.handle.holds_lease());
  EXPECT_TRUE(one.worker.combine(one.comm).ok());
  EXPECT_EQ(one.worker.out_difference(), "");
  EXPECT_EQ(other.worker.round(other.comm), "");
}

TEST(StateMisuseTest, LanesOutsideTheRange) {
  Alone alone;
  expect_error(ErrorCode::invalid_argument, {"lane", "2"}, [&] { alone.comm.step(2, 2); });
  expect_error(ErrorCode::invalid_argument, {"lane", "-1"}, [&] { alone.comm.step(-1, 2); });
  expect_error(ErrorCode::invalid_argument, {"lanes", "0"}, [&] { alone.comm.step(0, 0); });
}

TEST(StateMisuseTest, LanesAndRoles) {
  Alone alone;
  expect_error(ErrorCode::invalid_argument, {"lanes", "0"}, [&] { alone.comm.set_lanes(0); });
  expect_error(ErrorCode::invalid_argument, {"lanes", "65"}, [&] { alone.comm.set_lanes(65); });
  const auto refused = [&](int lanes, const Roles& roles, const char* text) {
    expect_error(ErrorCode::invalid_argument, {"roles", text},
                 [&] { alone.comm.set_lanes(lanes, roles); });
  };
  refused(4, {1, 1, 1}, "1:1:1");
  refused(4, {0, 2, 2}, "0:2:2");
  refused(4, {1, 0, 3}, "1:0:3");
  refused(2, {1, 2, -1}, "1:2:-1");
  refused(4, {2147483647, 2147483647, 6}, "2147483647:2147483647:6");
  expect_error(ErrorCode::invalid_argument, {"order", "9"},
               [&] { alone.comm.set_lanes(4, {}, static_cast<SendOrder>(9)); });
  alone.comm.set_lanes(1, {1, 0, 0});
  alone.comm.set_lanes(4, {1, 2, 1});
  EXPECT_TRUE(alone.worker.start_dispatch(alone.comm).ok());
  expect_error(ErrorCode::misuse, {"set_lanes"}, [&] { alone.comm.set_lanes(1); });
  expect_error(ErrorCode::misuse, {"set_tracer"}, [&] { alone.comm.set_tracer(nullptr); });
}

TEST(StateMisuseTest, InputArguments) {
  Alone alone;
  Rows x;
  expect_error(ErrorCode::invalid_argument, {"hidden", "33"},
               [&] { (void)alone.comm.input(4, 33, DType::bf16, x); });
  expect_error(ErrorCode::invalid_argument, {"num_rows", "-1"},
               [&] { (void)alone.comm.input(-1, 24, DType::bf16, x); });
}

// The buffer of input() belongs to the next dispatch.
TEST(StateMisuseTest, AnotherTensorAfterInput) {
  Alone alone;
  Rows x;
  ASSERT_TRUE(alone.comm.input(4, 24, DType::bf16, x).ok());
  Rows second;
  EXPECT_EQ(alone.comm.input(4, 24, DType::bf16, second).code, Code::slot_busy);
  EXPECT_EQ(alone.worker.start_dispatch(alone.comm).code, Code::slot_busy);
  ASSERT_TRUE(
      alone.comm.dispatch(x, alone.worker.routing(), alone.worker.options(), alone.worker.handle)
          .ok());
  EXPECT_TRUE(alone.worker.combine(alone.comm).ok());
  EXPECT_EQ(alone.worker.round(alone.comm), "");
}

TEST(StateMisuseTest, AfterClose) {
  Alone alone;
  ASSERT_TRUE(alone.worker.dispatch(alone.comm).ok());
  alone.comm.close();
  Rows x;
  std::vector<std::byte> memory(4096);
  const CombineArgs args{.out = {memory.data(), 4, 24, DType::bf16}};
  Handle fresh;
  const std::vector<std::function<void()>> calls{
      [&] { (void)alone.comm.dispatch(alone.worker.x(), alone.worker.routing(), {}, fresh); },
      [&] { (void)alone.comm.combine(alone.worker.handle, args); },
      [&] { (void)alone.comm.poll(alone.worker.handle); },
      [&] { (void)alone.comm.wait(alone.worker.handle); },
      [&] { (void)alone.comm.input(1, 24, DType::bf16, x); },
      [&] { alone.comm.step(); },
  };
  for (const auto& call : calls) expect_error(ErrorCode::misuse, {"closed"}, call);
}

TEST(StatusTest, OrThrowSaysWhatMessageSays) {
  Status status;
  EXPECT_NO_THROW(status.or_throw());
  status.code = Code::timeout;
  status.kind = OpKind::combine;
  status.rank = 1;
  status.peer = 3;
  status.missing = 0b1000;
  try {
    status.or_throw();
    ADD_FAILURE() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::status);
    EXPECT_EQ(error.what(), status.message());
  }
}

}  // namespace
}  // namespace ubep::test
