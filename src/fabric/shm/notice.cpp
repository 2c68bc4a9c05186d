#include "fabric/shm/notice.hpp"

#include <algorithm>
#include <cstring>

#include "base/fabric_facts.hpp"
#include "memory/word.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

// Offsets in the fabric header, behind the probe's word.
constexpr std::uint64_t kIdentity = 128;
constexpr std::uint64_t kWait = 192;
constexpr std::uint64_t kJob = 320;
constexpr std::size_t kJobBytes = kFabricHeaderBytes - kJob;
constexpr std::uint64_t kMagic = 0x6b'6e'61'72'70'65'62'75;  // "ubeprank"

struct IdentityLine {
  std::uint64_t magic;  // stored last
  std::uint64_t group;
  std::uint32_t wire_version;
  std::int32_t rank, size, pid;
  std::uint32_t slots, first_op, first_word, slot_bytes;
};
static_assert(kIdentity + sizeof(IdentityLine) <= kWait);

// Word 0 counts: odd while the others are being written.
struct WaitWords {
  std::uint64_t since_ns, looked_ns, epoch, expected, seen, missing;
  std::uint8_t code, kind, word, spare;
  std::int16_t peer, rank;
  std::int32_t expert;
  std::uint32_t rows, first_token, last_token;
  char text[48];
};
constexpr std::size_t kWords = sizeof(WaitWords) / 8;
static_assert(sizeof(WaitWords) % 8 == 0 && kWait + 8 + sizeof(WaitWords) <= kJob);

SharedWord wait_word(const std::byte* segment, std::size_t i) {
  return SharedWord(segment + kWait + 8 * i);
}

WaitWords pack(const WaitShown& wait) {
  const Status& s = wait.status;
  WaitWords words = {};
  words.since_ns = wait.since_ns;
  words.looked_ns = wait.looked_ns;
  words.epoch = s.epoch;
  words.expected = s.expected;
  words.seen = s.seen;
  words.missing = s.missing;
  words.code = static_cast<std::uint8_t>(s.code);
  words.kind = static_cast<std::uint8_t>(s.kind);
  words.word = static_cast<std::uint8_t>(s.word);
  words.peer = s.peer;
  words.rank = s.rank;
  words.expert = s.expert;
  words.rows = s.rows;
  words.first_token = s.first_token;
  words.last_token = s.last_token;
  std::strncpy(words.text, s.what, sizeof(words.text) - 1);
  return words;
}

// name() of a value that is out of range says "?".
WaitShown unpack(const WaitWords& words) {
  WaitShown wait;
  Status& s = wait.status;
  wait.since_ns = words.since_ns;
  wait.looked_ns = words.looked_ns;
  s.epoch = words.epoch;
  s.expected = words.expected;
  s.seen = words.seen;
  s.missing = words.missing;
  s.code = static_cast<Code>(words.code);
  s.kind = static_cast<OpKind>(words.kind);
  s.word = static_cast<Word>(words.word);
  s.peer = words.peer;
  s.rank = words.rank;
  s.expert = words.expert;
  s.rows = words.rows;
  s.first_token = words.first_token;
  s.last_token = words.last_token;
  wait.text.assign(words.text, strnlen(words.text, sizeof(words.text)));
  return wait;
}

}  // namespace

void show_identity(std::byte* segment, const Identity& identity) {
  const IdentityLine line{0,
                          identity.group,
                          kWireVersion,
                          identity.rank,
                          identity.size,
                          identity.pid,
                          identity.slots,
                          identity.first_op,
                          identity.first_word,
                          identity.slot_bytes};
  constexpr std::size_t kMagicBytes = sizeof(line.magic);
  std::memcpy(segment + kIdentity + kMagicBytes,
              reinterpret_cast<const std::byte*>(&line) + kMagicBytes, sizeof(line) - kMagicBytes);
  std::memcpy(segment + kJob, identity.job.data(), std::min(identity.job.size(), kJobBytes));
  // publishes: the line and the job's name, to read_identity() of whoever looks.
  SharedWord(segment + kIdentity).store_release(kMagic);
}

void show_wait(std::byte* segment, const WaitShown& wait) {
  const WaitWords words = pack(wait);
  std::array<std::uint64_t, kWords> values;
  std::memcpy(values.data(), &words, sizeof(words));
  // acquires: nothing; this rank alone writes it.
  const std::uint64_t count = wait_word(segment, 0).load_acquire();
  wait_word(segment, 0).store_release(count + 1);  // publishes: that the rest is in flux
  for (std::size_t i = 0; i < kWords; ++i) {
    // publishes: with each word, that the count was odd before: a reader of it finds it changed.
    wait_word(segment, 1 + i).store_release(values[i]);
  }
  wait_word(segment, 0).store_release(count + 2);  // publishes: all of them, to read_wait()
}

bool read_identity(const std::byte* segment, Identity& identity) {
  IdentityLine line;
  // acquires: the line and the job's name.
  if (SharedWord(segment + kIdentity).load_acquire() != kMagic) return false;
  std::memcpy(&line, segment + kIdentity, sizeof(line));
  if (line.wire_version != kWireVersion) return false;
  const auto* job = reinterpret_cast<const char*>(segment + kJob);
  identity = {.group = line.group,
              .rank = line.rank,
              .size = line.size,
              .pid = line.pid,
              .slots = line.slots,
              .first_op = line.first_op,
              .first_word = line.first_word,
              .slot_bytes = line.slot_bytes,
              .job = std::string(job, strnlen(job, kJobBytes))};
  return true;
}

bool read_wait(const std::byte* segment, WaitShown& wait) {
  // acquires: the words of this count.
  const std::uint64_t count = wait_word(segment, 0).load_acquire();
  std::array<std::uint64_t, kWords> values;
  for (std::size_t i = 0; i < kWords; ++i) {
    // acquires: the count at which it was written, which the last look then sees.
    values[i] = wait_word(segment, 1 + i).load_acquire();
  }
  // acquires: nothing; it is compared.
  if (count % 2 != 0 || wait_word(segment, 0).load_acquire() != count) return false;
  WaitWords words;
  std::memcpy(&words, values.data(), sizeof(words));
  wait = unpack(words);
  return true;
}

}  // namespace ubep
