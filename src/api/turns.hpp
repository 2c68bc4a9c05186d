// Whose turn it is to call a communicator: one thread at a time, and a second one is told.
//
//   const Turns::Turn turn(turns, "dispatch");    // throws Error{misuse} beside another thread's
#pragma once

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "memory/word.hpp"
#include "ubep/status.hpp"

namespace ubep {

class Turns {
 public:
  // The caller's thread for as long as its call lasts; calls inside it are part of it.
  class Turn {
   public:
    Turn(Turns& turns, const char* call) {
      const auto me = static_cast<std::uint64_t>(pthread_self());
      // claims: the calls that one thread at a time may make, from the thread before.
      if (turns.caller_.try_claim(0, me)) {
        turns_ = &turns;
        turns.call_ = call;
        return;
      }
      if (turns.caller_.load_acquire() == me) return;  // acquires: nothing, only we set it to us
      refuse(call, turns.call_);
    }
    ~Turn() {
      // publishes: what this call has done, to the thread whose turn is next.
      if (turns_ != nullptr) turns_->caller_.store_release(0);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    [[noreturn]] static void refuse(const char* call, const char* other) {
      throw Error(ErrorCode::misuse,
                  fmt::format("{}() while another thread is in {}() of this communicator, expected "
                              "one thread at a time",
                              call, other));
    }
    Turns* turns_ = nullptr;
  };

 private:
  LaneWord caller_;                    // 0 = nobody's turn
  std::atomic<const char*> call_{""};  // of it, for the message
};

}  // namespace ubep
