// What a rank shows of itself to whoever looks from outside (`ubep ps`): who it is, and what it has
// been waiting for. In the fabric header of its segment; peers never read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ubep/status.hpp"

namespace ubep {

// Whose segment it is, and where its words of operations lie. Fixed at creation.
struct Identity {
  std::uint64_t group = 0;  // a random number that the ranks of one communicator share
  std::uint32_t wire_version = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint32_t slots = 0;
  std::uint32_t first_op = 0;    // offset of the op lines
  std::uint32_t first_word = 0;  // offset of pub of slot 0; out and done are the next lines
  std::uint32_t slot_bytes = 0;  // from slot to slot
  char job[128] = {};            // shortened to what fits, and a 0
};

struct WaitShown {
  std::uint64_t since_ns = 0;   // of the monotonic clock
  std::uint64_t looked_ns = 0;  // when the rank last looked whether it is over
  Status status;                // Code::ok: it waits for nothing. `what` is in `text`
  char text[96] = {};
};

void show_identity(std::byte* segment, const Identity& identity);
// One caller at a time.
void show_wait(std::byte* segment, const WaitShown& wait);

// Of a mapped segment of any origin: numbers may be any, texts end. False: no such segment of this
// wire version, or (a wait) it is being written.
bool read_identity(const std::byte* segment, Identity& identity);
bool read_wait(const std::byte* segment, WaitShown& wait);

}  // namespace ubep
