// Errors: misuse and set-up throw `ubep::Error`; the data path returns `ubep::Status`.
//
//   ubep::Status status = comm.combine(handle, out);
//   if (!status.ok()) std::fputs(status.message().c_str(), stderr);
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "ubep/export.hpp"

namespace ubep {

// Outcome of an operation.
enum class Code : std::uint8_t {
  ok,
  not_ready,  // a peer or the caller's own earlier operation is not there yet; try again
  slot_busy,  // the next slot of the ring is leased: combine or release its dispatch first
  timeout,    // the deadline passed; the operation stays pending, waiting again resumes it
  peer_lost,  // a peer died, left or failed; finished for the others, see the validity bitmaps
  mismatch,   // ranks started different operations; the communicator has failed
  corrupt,    // a peer's shared memory holds impossible values; the communicator has failed
  // More rows than were declared. Of a start: nothing was published. Of a completed dispatch in
  // expert_padded: see DispatchOptions::expert_capacity.
  no_capacity,
};

// The shared word (docs/protocol.md) that a status speaks of.
enum class Word : std::uint8_t {
  none,
  op,
  pub,
  out,
  done,
  record,
  state,
  base,
  sent,
  armed,
  relayed,
  summed
};

enum class OpKind : std::uint8_t { none, dispatch, combine };

UBEP_API const char* name(Code code);
UBEP_API const char* name(Word word);
UBEP_API const char* name(OpKind kind);

// A small value; `message()` makes one line that names the peer and what was awaited.
struct [[nodiscard]] UBEP_API Status {
  Code code = Code::ok;
  OpKind kind = OpKind::none;  // the operation that the status is of
  Word word = Word::none;      // what it waited for or disagreed about
  std::int16_t rank = -1;      // the rank that reports
  std::int16_t peer = -1;      // the (first) rank concerned
  std::uint64_t epoch = 0;     // of the operation
  std::uint64_t expected = 0;  // value of `word`, or of `what`, that the reporter expected
  std::uint64_t seen = 0;      // value that it saw
  std::uint64_t missing = 0;   // bit r: rank r is still awaited (timeout) or lost (peer_lost)
  // Of a timeout, where it is known: what is awaited from `peer`.
  std::int32_t expert = -1;       // the first of its experts without outputs (by_expert), global id
  std::uint32_t rows = 0;         // rows of a dispatch, or outputs of a combine;
  std::uint32_t first_token = 0;  //   these are of the reporter's own tokens
  std::uint32_t last_token = 0;   //   first_token to last_token
  const char* what = "";          // the field that disagrees, a limit, "left", "dead", "failed"

  bool ok() const { return code == Code::ok; }
  std::string message() const;
  // Of a timeout or not_ready with a peer: "rank 1: op is 71, needs 72" and which rows.
  std::string awaited() const;
  void or_throw() const;  // throws Error{status} unless ok
};

enum class ErrorCode : std::uint8_t {
  invalid_argument,  // a value that can never be right
  misuse,            // a call in the wrong state: after close, in a forked child, before its turn
  setup,             // rendezvous, memory or system call failed
  status,            // a Status turned into an exception by or_throw()
};

// What is thrown for misuse and set-up. what() names the argument, the value seen and the value
// expected.
class UBEP_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ubep
