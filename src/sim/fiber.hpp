// A function that can stop in its middle and be gone on with later, on the same thread.
//
//   Fiber fiber([] { ...; Fiber::suspend(); ... });
//   while (!fiber.ended()) fiber.resume();
//
// Boost.Context switches stacks; this adds what the sanitizers want to know, and exceptions: a
// fiber may stop within a handler. Fibers may resume others. Resuming one that runs or has ended,
// or suspend() outside of all, ends the process.
#pragma once

#include <exception>
#include <functional>
#include <memory>

namespace ubep::sim {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  // A fiber that was resumed must have ended.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it suspends or ends. Throws what the body threw.
  void resume();
  bool started() const;
  bool ended() const;

  // The fiber that runs, or null.
  static Fiber* current();
  // Back to whoever resumed the current fiber.
  static void suspend();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace ubep::sim
