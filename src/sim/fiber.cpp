#include "sim/fiber.hpp"

#include <cxxabi.h>

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <utility>

#include "base/invariant.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define UBEP_ASAN_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UBEP_ASAN_FIBERS 1
#endif
#endif
#ifdef UBEP_ASAN_FIBERS
#include <sanitizer/common_interface_defs.h>
#endif

namespace ubep::sim {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
thread_local Fiber* running = nullptr;

// The address sanitizer must know whose stack is in use.
struct Stack {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
};

#ifdef UBEP_ASAN_FIBERS
void leave(void** fake, const Stack& to) {
  __sanitizer_start_switch_fiber(fake, to.bottom, to.bytes);
}
void arrive(void* fake, Stack* from) {
  __sanitizer_finish_switch_fiber(fake, from != nullptr ? &from->bottom : nullptr,
                                  from != nullptr ? &from->bytes : nullptr);
}
#else
void leave(void**, const Stack&) {}
void arrive(void*, Stack*) {}
#endif

// What the runtime library knows of a thread's exceptions that are being thrown or handled. Every
// fiber has its own, or one that stops within a handler would end the handler of another.
struct Exceptions {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

void exchange_exceptions(Exceptions& with) {
  void* current = abi::__cxa_get_globals();
  Exceptions before;
  std::memcpy(&before, current, sizeof before);
  std::memcpy(current, &with, sizeof with);
  with = before;
}

}  // namespace

struct Fiber::Context {
  std::function<void()> body;
  boost::context::fiber inside;   // while it is suspended
  boost::context::fiber outside;  // while it runs
  Stack inner;
  Stack outer;
  void* fake_inner = nullptr;
  void* fake_outer = nullptr;
  Exceptions exceptions;  // of the other side
  Fiber* resumer = nullptr;
  std::exception_ptr error;
  bool started = false;
  bool ended = false;
};

Fiber::Fiber(std::function<void()> body) : context_(std::make_unique<Context>()) {
  context_->body = std::move(body);
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  boost::context::stack_context stack = allocator.allocate();
  Context* c = context_.get();
  c->inner = {static_cast<char*>(stack.sp) - stack.size, stack.size};
  c->inside = boost::context::fiber(std::allocator_arg,
                                    boost::context::preallocated(stack.sp, stack.size, stack),
                                    allocator, [c](boost::context::fiber&& outside) {
                                      arrive(nullptr, &c->outer);
                                      c->outside = std::move(outside);
                                      try {
                                        c->body();
                                      } catch (...) {
                                        c->error = std::current_exception();
                                      }
                                      c->ended = true;
                                      leave(nullptr, c->outer);
                                      return std::move(c->outside);
                                    });
}

Fiber::~Fiber() {
  if (context_->started && !context_->ended) broken_invariant("a fiber is dropped in its middle");
  // One that never ran only gives its stack back.
  if (!context_->started) {
    context_->body = [] {};
    resume();
  }
}

void Fiber::resume() {
  Context& c = *context_;
  if (c.ended) broken_invariant("a fiber is resumed after its end");
  if (!c.inside) broken_invariant("a fiber is resumed while it runs");
  c.started = true;
  c.resumer = std::exchange(running, this);
  exchange_exceptions(c.exceptions);
  leave(&c.fake_outer, c.inner);
  c.inside = std::move(c.inside).resume();
  arrive(c.fake_outer, nullptr);
  exchange_exceptions(c.exceptions);
  running = c.resumer;
  if (c.error) std::rethrow_exception(std::exchange(c.error, nullptr));
}

bool Fiber::started() const { return context_->started; }
bool Fiber::ended() const { return context_->ended; }
Fiber* Fiber::current() { return running; }

void Fiber::suspend() {
  if (running == nullptr) broken_invariant("suspend() is called by no fiber");
  Context& c = *running->context_;
  leave(&c.fake_inner, c.outer);
  c.outside = std::move(c.outside).resume();
  arrive(c.fake_inner, &c.outer);
}

}  // namespace ubep::sim
