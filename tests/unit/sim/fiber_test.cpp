#include "sim/fiber.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ubep::sim {
namespace {

TEST(FiberTest, GoesOnWhereItStopped) {
  std::string text;
  Fiber fiber([&] {
    text += "a";
    Fiber::suspend();
    for (int i = 0; i < 2; ++i) {
      text += "b";
      Fiber::suspend();
    }
    text += "c";
  });
  EXPECT_FALSE(fiber.started());
  EXPECT_EQ(text, "");
  for (const char* expected : {"a", "ab", "abb"}) {
    fiber.resume();
    EXPECT_EQ(text, expected);
    EXPECT_TRUE(fiber.started());
    EXPECT_FALSE(fiber.ended());
  }
  fiber.resume();
  EXPECT_EQ(text, "abbc");
  EXPECT_TRUE(fiber.ended());
}

// More than a process may have guard pages for: the later ones do without.
TEST(FiberTest, ThereMayBeTensOfThousands) {
  constexpr int kFibers = 40'000;
  std::vector<std::unique_ptr<Fiber>> fibers;
  int begun = 0;
  int ended = 0;
  for (int i = 0; i < kFibers; ++i) {
    fibers.push_back(std::make_unique<Fiber>([&] {
      ++begun;
      Fiber::suspend();
      ++ended;
    }));
    fibers.back()->resume();
  }
  EXPECT_EQ(begun, kFibers);
  for (auto& fiber : fibers) fiber->resume();
  EXPECT_EQ(ended, kFibers);
}

TEST(FiberTest, CurrentIsTheOneThatRuns) {
  EXPECT_EQ(Fiber::current(), nullptr);
  Fiber* seen = nullptr;
  Fiber fiber([&] { seen = Fiber::current(); });
  fiber.resume();
  EXPECT_EQ(seen, &fiber);
  EXPECT_EQ(Fiber::current(), nullptr);
}

TEST(FiberTest, AnExceptionComesOutOfResumeOnce) {
  Fiber fiber([] {
    Fiber::suspend();
    throw std::runtime_error("here");
  });
  fiber.resume();
  try {
    fiber.resume();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "here");
  }
  EXPECT_TRUE(fiber.ended());
  EXPECT_EQ(Fiber::current(), nullptr);
}

TEST(FiberTest, OneThatNeverRanCanBeDropped) {
  bool ran = false;
  {
    const Fiber fiber([&] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

TEST(FiberTest, FibersResumeOthers) {
  std::string text;
  Fiber inner([&] {
    text += "1";
    Fiber::suspend();
    text += "2";
    throw std::runtime_error("inner");
  });
  Fiber outer([&] {
    Fiber* self = Fiber::current();
    inner.resume();
    EXPECT_EQ(Fiber::current(), self);
    text += "a";
    Fiber::suspend();
    try {
      inner.resume();
    } catch (const std::runtime_error& error) {
      text += error.what();
    }
    EXPECT_EQ(Fiber::current(), self);
  });
  outer.resume();
  EXPECT_EQ(text, "1a");
  outer.resume();
  EXPECT_EQ(text, "1a2inner");
  EXPECT_TRUE(inner.ended());
  EXPECT_TRUE(outer.ended());
}

TEST(FiberTest, OneIsResumedByOthersInTurn) {
  int steps = 0;
  Fiber shared([&] {
    for (; steps < 10; ++steps) Fiber::suspend();
  });
  Fiber first([&] {
    for (int i = 0; i < 5; ++i, Fiber::suspend()) shared.resume();
  });
  Fiber second([&] {
    for (int i = 0; i < 5; ++i, Fiber::suspend()) shared.resume();
  });
  while (!first.ended() || !second.ended()) {
    if (!first.ended()) first.resume();
    if (!second.ended()) second.resume();
  }
  EXPECT_EQ(steps, 9);
  shared.resume();
  EXPECT_EQ(steps, 10);
  EXPECT_TRUE(shared.ended());
}

// Each is in a handler of its own exception, and goes on and ends in the order of the others'
// turns.
TEST(FiberTest, StopsWithinAHandler) {
  std::vector<std::string> caught;
  const auto body = [&](const std::string& name) {
    try {
      throw std::runtime_error(name);
    } catch (const std::runtime_error& error) {
      Fiber::suspend();
      caught.emplace_back(error.what());
      try {
        throw;
      } catch (const std::runtime_error& again) {
        Fiber::suspend();
        caught.emplace_back(again.what());
      }
    }
    EXPECT_EQ(std::uncaught_exceptions(), 0);
    EXPECT_EQ(std::current_exception(), nullptr);
  };
  Fiber first([&] { body("first exception, and a text that needs memory"); });
  Fiber second([&] { body("second exception, and a text that needs memory"); });
  for (int i = 0; i < 3; ++i) {
    first.resume();
    second.resume();
    EXPECT_EQ(std::current_exception(), nullptr);
  }
  const std::string one = "first exception, and a text that needs memory";
  const std::string two = "second exception, and a text that needs memory";
  EXPECT_EQ(caught, (std::vector{one, two, one, two}));
}

TEST(FiberTest, StopsWhileAnExceptionPasses) {
  struct Stops {
    ~Stops() { Fiber::suspend(); }
  };
  Fiber fiber([] {
    const Stops stops;
    throw std::runtime_error("passes");
  });
  fiber.resume();
  EXPECT_EQ(std::uncaught_exceptions(), 0);
  EXPECT_THROW(fiber.resume(), std::runtime_error);
}

TEST(FiberTest, ThousandsTakeTurns) {
  constexpr int kFibers = 4000;
  int sum = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (int i = 0; i < kFibers; ++i) {
    fibers.push_back(std::make_unique<Fiber>([&sum, i] {
      char deep[8192];  // touched memory of its own
      std::memset(deep, i & 0x7f, sizeof deep);
      Fiber::suspend();
      sum += std::count(std::begin(deep), std::end(deep), static_cast<char>(i & 0x7f)) == 8192;
      Fiber::suspend();
      ++sum;
    }));
  }
  for (int round = 0; round < 3; ++round) {
    for (const auto& fiber : fibers) fiber->resume();
  }
  EXPECT_EQ(sum, 2 * kFibers);
  EXPECT_TRUE(std::all_of(fibers.begin(), fibers.end(), [](auto& f) { return f->ended(); }));
}

TEST(FiberDeathTest, WrongUsesEndTheProcess) {
  EXPECT_DEATH(Fiber::suspend(), "called by no fiber");
  EXPECT_DEATH(
      {
        Fiber fiber([] {});
        fiber.resume();
        fiber.resume();
      },
      "after its end");
  EXPECT_DEATH(
      {
        Fiber fiber([] { Fiber::current()->resume(); });
        fiber.resume();
      },
      "while it runs");
  EXPECT_DEATH(
      {
        Fiber fiber([] { Fiber::suspend(); });
        fiber.resume();
      },
      "dropped in its middle");
}

}  // namespace
}  // namespace ubep::sim
