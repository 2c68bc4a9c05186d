// Calls of handles and communicators that cannot be right: out of turn, moved from, gone, from two
// threads, with environment variables that are no numbers. What was there before goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/worker.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {
namespace {

Problem alone() { return make_problem({.ranks = 1, .experts_per_rank = 4, .tokens = 4}); }

Communicator create_alone(const Problem& problem) {
  return Communicator::create(ThreadGroup(1).bootstrap(0), options_for(problem));
}

CombineArgs args_of(std::vector<std::byte>& memory) {
  memory.resize(4096);
  return {.out = {memory.data(), 4, 24, DType::bf16}};
}

TEST(HandleMisuseTest, OutOfTurnOrMovedFrom) {
  const Problem problem = alone();
  Communicator comm = create_alone(problem);
  Worker worker(problem, 0);
  std::vector<std::byte> memory;
  const CombineArgs args = args_of(memory);
  Handle handle;
  expect_error(ErrorCode::misuse, {"handle", "no dispatch", "never used"},
               [&] { (void)comm.combine(handle, args); });
  ASSERT_TRUE(worker.dispatch(comm).ok());
  comm.release(worker.handle);
  expect_error(ErrorCode::misuse, {"handle", "dispatch of epoch 1", "was released"},
               [&] { (void)comm.combine(worker.handle, args); });
  ASSERT_TRUE(worker.dispatch(comm).ok());
  Handle moved = std::move(worker.handle);
  // NOLINTNEXTLINE(bugprone-use-after-move): what it does is tested
  expect_error(ErrorCode::misuse, {"handle", "no dispatch", "moved from"},
               [&] { (void)comm.combine(worker.handle, args); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)worker.handle.received(); });
  worker.handle = std::move(moved);
  EXPECT_EQ(worker.received_difference(), "");
  EXPECT_TRUE(worker.combine(comm).ok());
  EXPECT_EQ(worker.out_difference(), "");
}

TEST(HandleMisuseTest, TheCommunicatorIsGone) {
  const Problem problem = alone();
  std::optional<Communicator> first = create_alone(problem);
  Communicator second = create_alone(problem);
  Worker worker(problem, 0);
  ASSERT_TRUE(worker.dispatch(*first).ok());
  first.reset();
  std::vector<std::byte> memory;
  const CombineArgs args = args_of(memory);
  EXPECT_FALSE(worker.handle.holds_lease());
  expect_error(ErrorCode::misuse, {"handle", "its communicator is gone"},
               [&] { (void)second.combine(worker.handle, args); });
  expect_error(ErrorCode::misuse, {"handle"}, [&] { (void)worker.handle.received(); });
  EXPECT_EQ(worker.round(second), "");
}

TEST(HandleMisuseTest, TheSlotsAreExhausted) {
  const Problem problem = alone();
  Communicator comm = create_alone(problem);
  Worker a(problem, 0);
  Worker b(problem, 0);
  Worker c(problem, 0);
  ASSERT_TRUE(a.dispatch(comm).ok());
  ASSERT_TRUE(b.dispatch(comm).ok());
  const Status status = c.dispatch(comm);
  EXPECT_EQ(status.code, Code::slot_busy);
  expect_parts(status.message(),
               {"leased", "combine or release", "CommunicatorOptions::slots", "2"});
  EXPECT_TRUE(a.combine(comm).ok());
  EXPECT_EQ(c.round(comm), "");
  EXPECT_TRUE(b.combine(comm).ok());
  EXPECT_EQ(b.out_difference(), "");
}

TEST(CommunicatorMisuseTest, MovedFrom) {
  const Problem problem = alone();
  Communicator comm = create_alone(problem);
  Worker worker(problem, 0);
  Communicator moved = std::move(comm);
  // NOLINTBEGIN(bugprone-use-after-move): what it does is tested
  const std::vector<std::function<void()>> calls{
      [&] { (void)comm.rank(); },
      [&] { (void)comm.size(); },
      [&] { (void)comm.facts(); },
      [&] { (void)worker.dispatch(comm); },
      [&] { (void)comm.wait(worker.handle); },
      [&] { (void)comm.step(); },
      [&] { comm.release(worker.handle); },
      [&] { comm.set_lanes(2); },
  };
  for (const auto& call : calls) expect_error(ErrorCode::misuse, {"moved from"}, call);
  comm.close();  // nothing to close
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(worker.round(moved), "");
}

TEST(CommunicatorMisuseTest, ProcessesNeedAName) {
  const CommunicatorOptions options{.num_experts = 4, .max_tokens = 4, .max_hidden = 24};
  expect_error(ErrorCode::invalid_argument, {"job", "empty", "name", "2 ranks"},
               [&] { (void)Communicator::create({.rank = 1, .size = 2}, options); });
  (void)Communicator::create({.rank = 0, .size = 1}, options);  // meets nobody
}

TEST(CommunicatorMisuseTest, TimeoutsThatCannotBe) {
  const CommunicatorOptions options{.num_experts = 4, .max_tokens = 4, .max_hidden = 24};
  Bootstrap bootstrap = ThreadGroup(1).bootstrap(0);
  for (const char* text : {"-1", "0", "x", "5s", " 5", "99999999999999999999"}) {
    setenv("UBEP_TIMEOUT_MS", text, 1);
    expect_error(ErrorCode::invalid_argument, {"UBEP_TIMEOUT_MS", text, "milliseconds, 1.."},
                 [&] { (void)Communicator::create(bootstrap, options); });
  }
  setenv("UBEP_TIMEOUT_MS", "", 1);  // as if it were not there
  (void)Communicator::create(bootstrap, options);
  unsetenv("UBEP_TIMEOUT_MS");
  bootstrap.timeout = std::chrono::milliseconds(-3);
  expect_error(ErrorCode::invalid_argument, {"bootstrap.timeout", "-3", ">= 0"},
               [&] { (void)Communicator::create(bootstrap, options); });
}

// A second thread is told so at once; the first one's call is what it was.
TEST(CommunicatorMisuseTest, TwoThreads) {
  const Problem problem = make_problem({.ranks = 2});
  const Gate refused(1);
  run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
    Communicator comm = Communicator::create(bootstrap, options_for(problem));
    Worker worker(problem, bootstrap.rank);
    if (bootstrap.rank == 1) {
      refused.wait();
      EXPECT_EQ(worker.round(comm), "");
      return;
    }
    Worker second(problem, 0);
    Rows x;
    const std::vector<std::pair<const char*, std::function<void()>>> calls{
        {"start_dispatch()", [&] { (void)second.start_dispatch(comm); }},
        {"dispatch()", [&] { (void)second.dispatch(comm); }},
        {"combine()", [&] { (void)comm.combine(second.handle, {}); }},
        {"wait()", [&] { (void)comm.wait(second.handle); }},
        {"release()", [&] { comm.release(second.handle); }},
        {"input()", [&] { (void)comm.input(1, 24, DType::bf16, x); }},
        {"set_lanes()", [&] { comm.set_lanes(2); }}};
    ASSERT_TRUE(worker.start_dispatch(comm).ok());
    std::thread waiting([&] {
      for (bool again = true; again;) {
        try {
          EXPECT_TRUE(comm.wait(worker.handle).ok());
          again = false;
        } catch (const Error&) {  // this rank's other thread was there
        }
      }
    });
    // Until the thread has begun to wait, this one's own wait of no time is in order.
    const auto now = [] { return std::chrono::steady_clock::now(); };
    try {
      for (;;) (void)comm.wait(worker.handle, now());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::misuse) << error.what();
    }
    for (const auto& [name, call] : calls) {
      expect_error(ErrorCode::misuse, {name, "another thread is in wait()", "one thread at a time"},
                   call);
    }
    (void)comm.step();  // as lane 0 it may
    refused.arrive();
    waiting.join();
    EXPECT_EQ(worker.received_difference(), "");
    EXPECT_TRUE(worker.combine(comm).ok());
    EXPECT_EQ(worker.out_difference(), "");
  });
}

}  // namespace
}  // namespace ubep::test
