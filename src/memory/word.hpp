// Words shared between ranks or lanes. This folder is the only place that names a memory order.
//
// SharedWord: 64 bits in a segment, one writer, any readers, values only grow.
// LaneWord:   64 bits of private memory that the lanes of one rank pass ownership through.
//
// Every call of an ordering method elsewhere carries a comment that says what it publishes or
// acquires, who is on the other side, and what breaks without it.
#pragma once

#include <atomic>
#include <cstdint>

namespace ubep {

class SharedWord {
 public:
  explicit SharedWord(const void* address)
      : word_(static_cast<std::uint64_t*>(const_cast<void*>(address))) {}

  std::uint64_t load_acquire() const {
    return std::atomic_ref<std::uint64_t>(*word_).load(std::memory_order_acquire);
  }
  void store_release(std::uint64_t value) const {
    std::atomic_ref<std::uint64_t>(*word_).store(value, std::memory_order_release);
  }

 private:
  static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free,
                "a load must not write to a read-only mapping");
  std::uint64_t* word_;
};

class LaneWord {
 public:
  LaneWord() = default;
  explicit LaneWord(std::uint64_t value) : word_(value) {}

  std::uint64_t load_acquire() const { return word_.load(std::memory_order_acquire); }
  void store_release(std::uint64_t value) { word_.store(value, std::memory_order_release); }
  // from -> to; true when this lane did it, and then everything before the store of `from` is
  // visible.
  bool try_claim(std::uint64_t from, std::uint64_t to) {
    return word_.load(std::memory_order_relaxed) == from &&
           word_.compare_exchange_strong(from, to, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void add_relaxed(std::uint64_t amount) { word_.fetch_add(amount, std::memory_order_relaxed); }
  void or_release(std::uint64_t bits) { word_.fetch_or(bits, std::memory_order_release); }
  // Whether this lane is the one that set the bit.
  bool try_set(std::uint64_t bit) {
    return (word_.fetch_or(bit, std::memory_order_acq_rel) & bit) == 0;
  }
  // Returns the value after the subtraction; the last lane sees what all others did before.
  std::uint64_t subtract_acq_rel(std::uint64_t amount) {
    return word_.fetch_sub(amount, std::memory_order_acq_rel) - amount;
  }

 private:
  std::atomic<std::uint64_t> word_{0};
};

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ubep
