// Misuse of one rank: it is told at once what is wrong, nothing is published, and the correct call
// works afterwards on all ranks. What ranks call differently is told to each, by name and value.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"

namespace ubep::test {
namespace {

using std::chrono::steady_clock;

class MisuseTest : public testing::TestWithParam<RankKind> {};

// --- on one rank ---

TEST_P(MisuseTest, OneRankErrsAndThenDoesRight) {
  const Problem problem = make_problem({.ranks = 3});
  run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    std::vector<std::int32_t> ids(worker.routing().topk_idx.begin(),
                                  worker.routing().topk_idx.end());
    std::vector<std::byte> memory(8192);
    for (int round = 0; round < 4; ++round) {
      if (bootstrap.rank == round % 3) {
        Routing routing = worker.routing();
        ids.back() = 6;
        routing.topk_idx = ids;
        expect_error(ErrorCode::invalid_argument, {"routing.topk_idx[5][1]", "6", "-1..5"}, [&] {
          (void)comm.dispatch(worker.x(), routing, worker.options(), worker.handle);
        });
        ConstRows x = worker.x();
        x.dtype = DType::fp32;
        expect_error(ErrorCode::invalid_argument, {"x.hidden", "24 fp32", "1..12"}, [&] {
          (void)comm.dispatch(x, worker.routing(), worker.options(), worker.handle);
        });
        x = {memory.data(), 7, 24, DType::bf16};
        const Status status =
            comm.dispatch(x, {std::vector<std::int32_t>(14, 0), std::vector<float>(14, 1.0F), 2},
                          worker.options(), worker.handle);
        EXPECT_EQ(status.code, Code::no_capacity);
        expect_parts(status.message(), {"x.num_rows", "7", "6"});
      }
      ASSERT_TRUE(worker.dispatch(comm).ok());
      EXPECT_EQ(worker.received_difference(), "");
      if (bootstrap.rank == round % 3) {
        expect_error(ErrorCode::invalid_argument, {"out.num_rows", "5", "6"}, [&] {
          (void)comm.combine(worker.handle, {.out = {memory.data(), 5, 24, DType::bf16}});
        });
      }
      ASSERT_TRUE(worker.combine(comm).ok());
      EXPECT_EQ(worker.out_difference(), "");
    }
  });
}

// Any order of their start will do; nobody depends on rank 0's being first.
TEST_P(MisuseTest, RanksStartInAnyOrder) {
  const Problem problem = make_problem({.ranks = 3});
  for (const int first : {0, 1, 2}) {
    const Gate there(1);
    run_ranks(GetParam(), 3, [&](const Bootstrap& bootstrap) {
      if (bootstrap.rank == first) {
        there.arrive();
      } else {
        there.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(20 * (1 + bootstrap.rank)));
      }
      Communicator comm = Communicator::create(bootstrap, options_for(problem));
      EXPECT_EQ(Worker(problem, bootstrap.rank).round(comm), "");
    });
  }
}

// --- on all ranks, differently ---

struct Text {
  Code code = Code::ok;
  char message[300] = {};
};

using Differ = std::function<Status(Communicator&, Worker&, bool differs)>;

// Rank 1 of two does what the other does not: who compares says what, and both values.
void expect_mismatch(RankKind kind, const Problem& problem, const Differ& call,
                     const Parts& parts) {
  const SharedArray<Text> texts(2);
  run_ranks(kind, 2, [&](const Bootstrap& bootstrap) {
    CommunicatorOptions options = options_for(problem);
    options.max_payload = 64;
    Communicator comm = Communicator::create(bootstrap, options);
    Worker worker(problem, bootstrap.rank);
    const auto start = steady_clock::now();
    const Status status = call(comm, worker, bootstrap.rank == 1);
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(5));
    texts[bootstrap.rank].code = status.code;
    std::snprintf(texts[bootstrap.rank].message, sizeof(Text::message), "%s",
                  status.message().c_str());
  });
  int mismatches = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string message = texts[rank].message;
    if (texts[rank].code == Code::mismatch) {
      ++mismatches;
      expect_parts(message, parts);
      expect_parts(message, {"on rank 0", "on rank 1"});
    } else {
      EXPECT_EQ(texts[rank].code, Code::peer_lost) << message;
      expect_parts(message, {"failed"});
    }
  }
  EXPECT_GE(mismatches, 1);
}

Differ options_differ(const std::function<void(DispatchOptions&)>& change) {
  return [change](Communicator& comm, Worker& worker, bool differs) {
    DispatchOptions options = worker.options();
    if (differs) change(options);
    return comm.dispatch(worker.x(), worker.routing(), options, worker.handle);
  };
}

TEST_P(MisuseTest, DifferentQuant) {
  expect_mismatch(GetParam(), make_problem({}),
                  options_differ([](DispatchOptions& o) { o.quant = Quant::fp8; }),
                  {"quant", "none", "fp8"});
}
TEST_P(MisuseTest, DifferentBaselinePath) {
  expect_mismatch(GetParam(), make_problem({.layout = Layout::expert_major}),
                  options_differ([](DispatchOptions& o) { o.path = Path::bsp; }), {"path", "bsp"});
  expect_mismatch(GetParam(), make_problem({}),
                  options_differ([](DispatchOptions& o) { o.path = Path::allgather; }),
                  {"path", "allgather"});
}
TEST_P(MisuseTest, DifferentLayouts) {
  Problem problem = make_problem({.layout = Layout::expert_major});
  problem.expert_capacity = 24;
  expect_mismatch(GetParam(), problem,
                  [](Communicator& comm, Worker& worker, bool differs) {
                    DispatchOptions options;
                    options.layout = differs ? Layout::expert_padded : Layout::expert_major;
                    return comm.dispatch(worker.x(), worker.routing(), options, worker.handle);
                  },
                  {"layout", "expert_major", "expert_padded"});
}
TEST_P(MisuseTest, DifferentPayloads) {
  expect_mismatch(GetParam(), make_problem({}),
                  [](Communicator& comm, Worker& worker, bool differs) {
                    const std::vector<std::byte> bytes(1024);
                    const Payload payload{"scale", bytes.data(), differs ? 24 : 8};
                    const Input in(worker.x(), {&payload, 1});
                    return comm.dispatch(in, worker.routing(), worker.options(), worker.handle);
                  },
                  {"payload bytes", "8", "24"});
}
TEST_P(MisuseTest, DifferentWeightsOfTheSums) {
  expect_mismatch(GetParam(), make_problem({.experts_per_rank = 1}),
                  [](Communicator& comm, Worker& worker, bool differs) {
                    const Status status = worker.dispatch(comm);
                    if (!status.ok()) return status;
                    CombineArgs args = worker.prepare_combine();
                    args.unweighted = differs;
                    return comm.combine(worker.handle, args);
                  },
                  {"unweighted", "0", "1"});
}
TEST_P(MisuseTest, ADispatchAgainstACombine) {
  expect_mismatch(GetParam(), make_problem({.experts_per_rank = 1}),
                  [](Communicator& comm, Worker& worker, bool differs) {
                    const Status status = worker.dispatch(comm);
                    if (!status.ok()) return status;
                    if (!differs) return worker.combine(comm);
                    Handle second;
                    return comm.dispatch(worker.x(), worker.routing(), worker.options(), second);
                  },
                  {"dispatch", "combine"});
}

INSTANTIATE_TEST_SUITE_P(Kinds, MisuseTest, testing::Values(RankKind::threads, RankKind::processes),
                         KindName());

}  // namespace
}  // namespace ubep::test
