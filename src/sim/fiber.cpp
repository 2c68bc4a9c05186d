#include "sim/fiber.hpp"

#include <cxxabi.h>

#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/invariant.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define UBEP_ASAN_FIBERS 1
#elif defined(__SANITIZE_THREAD__)
#define UBEP_TSAN_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UBEP_ASAN_FIBERS 1
#elif __has_feature(thread_sanitizer)
#define UBEP_TSAN_FIBERS 1
#endif
#endif
#ifdef UBEP_ASAN_FIBERS
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef UBEP_TSAN_FIBERS
#include <sanitizer/tsan_interface.h>
#endif

namespace ubep::sim {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
thread_local Fiber* running = nullptr;

// Stacks are used again: a new one takes several system calls, and its pages are slow at first.
// A guard page splits a mapping, and a process has some 65,000 of them: beyond kMostGuarded stacks
// do without, side by side.
class PooledStacks {
 public:
  boost::context::stack_context allocate() {
    Pool& own = pool();
    if (own.free.empty()) return own.make();
    const boost::context::stack_context stack = own.free.back();
    own.free.pop_back();
    return stack;
  }
  void deallocate(boost::context::stack_context& stack) { pool().free.push_back(stack); }

 private:
  using Guarded = boost::context::protected_fixedsize_stack;
  using Plain = boost::context::fixedsize_stack;
  static constexpr std::int64_t kMostGuarded = 16'000;
  static inline std::atomic<std::int64_t> num_guarded = 0;  // of all threads

  struct Pool {
    Pool() = default;
    ~Pool() {
      for (auto& stack : guarded) Guarded(kStackBytes).deallocate(stack);
      for (auto& stack : plain) Plain(kStackBytes).deallocate(stack);
      num_guarded -= static_cast<std::int64_t>(guarded.size());
    }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    boost::context::stack_context make() {
      if (++num_guarded <= kMostGuarded) {
        return guarded.emplace_back(Guarded(kStackBytes).allocate());
      }
      --num_guarded;
      return plain.emplace_back(Plain(kStackBytes).allocate());
    }

    std::vector<boost::context::stack_context> guarded, plain;  // all that were made
    std::vector<boost::context::stack_context> free;
  };
  static Pool& pool() {
    thread_local Pool pool;
    return pool;
  }
};

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

// The thread sanitizer keeps a call stack for each fiber. It notes a call at the entry and at the
// exit of a function: so these two are inlined, and called where entry and exit are on one side.
#ifdef UBEP_TSAN_FIBERS
class Identity {
 public:
  Identity() : inside_(__tsan_create_fiber(0)) {}
  ~Identity() { __tsan_destroy_fiber(inside_); }
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  [[gnu::always_inline]] void take() {
    outside_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(inside_, 0);
  }
  [[gnu::always_inline]] void give_back() { __tsan_switch_to_fiber(outside_, 0); }

 private:
  void* inside_;
  void* outside_ = nullptr;
};
#else
struct Identity {
  void take() {}
  void give_back() {}
};
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
  Identity identity;
  Exceptions exceptions;  // of the other side
  Fiber* resumer = nullptr;
  std::exception_ptr error;
  bool started = false;
  bool ended = false;
};

Fiber::Fiber(std::function<void()> body) : context_(std::make_unique<Context>()) {
  context_->body = std::move(body);
  PooledStacks allocator;
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
  c.identity.take();
  c.inside = std::move(c.inside).resume();
  c.identity.give_back();
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
