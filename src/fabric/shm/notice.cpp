#include "fabric/shm/notice.hpp"

#include <array>
#include <cstring>
#include <type_traits>

#include "base/fabric_facts.hpp"
#include "memory/word.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

// Offsets in the fabric header, behind the probe's word: a word and what it announces.
constexpr std::uint64_t kIdentity = 128;
constexpr std::uint64_t kWait = 320;
constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kMagic = 0x6b'6e'61'72'70'65'62'75;  // "ubeprank"

using WaitWords = std::array<std::uint64_t, sizeof(WaitShown) / kWord>;

static_assert(std::is_trivially_copyable_v<Identity> && std::is_trivially_copyable_v<WaitShown>);
static_assert(kIdentity + kWord + sizeof(Identity) <= kWait);
static_assert(kWait + kWord + sizeof(WaitShown) <= kFabricHeaderBytes);
static_assert(sizeof(WaitWords) == sizeof(WaitShown));

// Word 0 counts: odd while the others are being written.
SharedWord wait_word(const std::byte* segment, std::size_t i) {
  return SharedWord(segment + kWait + kWord * i);
}

}  // namespace

void show_identity(std::byte* segment, const Identity& identity) {
  Identity mine = identity;
  mine.wire_version = kWireVersion;
  std::memcpy(segment + kIdentity + kWord, &mine, sizeof(mine));
  // publishes: the identity, to read_identity() of whoever looks; without the order it would take
  // zeros for one.
  SharedWord(segment + kIdentity).store_release(kMagic);
}

void show_wait(std::byte* segment, const WaitShown& wait) {
  WaitShown shown = wait;
  std::strncpy(shown.text, wait.status.what, sizeof(shown.text) - 1);
  shown.status.what = nullptr;  // an address of mine
  WaitWords words;
  std::memcpy(words.data(), static_cast<const void*>(&shown), sizeof(shown));
  // acquires: nothing; this rank alone writes it.
  const std::uint64_t count = wait_word(segment, 0).load_acquire();
  wait_word(segment, 0).store_release(count + 1);  // publishes: that the rest is in flux
  for (std::size_t i = 0; i < words.size(); ++i) {
    // publishes: with each word, that the count was odd before: a reader of it finds it changed.
    wait_word(segment, 1 + i).store_release(words[i]);
  }
  wait_word(segment, 0).store_release(count + 2);  // publishes: all of them, to read_wait()
}

bool read_identity(const std::byte* segment, Identity& identity) {
  // acquires: the identity, from show_identity().
  if (SharedWord(segment + kIdentity).load_acquire() != kMagic) return false;
  std::memcpy(&identity, segment + kIdentity + kWord, sizeof(identity));
  identity.job[sizeof(identity.job) - 1] = 0;
  return identity.wire_version == kWireVersion;
}

bool read_wait(const std::byte* segment, WaitShown& wait) {
  // acquires: the words of this count, from show_wait().
  const std::uint64_t count = wait_word(segment, 0).load_acquire();
  WaitWords words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    // acquires: the count at which it was written, which the last look then sees.
    words[i] = wait_word(segment, 1 + i).load_acquire();
  }
  // acquires: nothing; it is compared.
  if (count % 2 != 0 || wait_word(segment, 0).load_acquire() != count) return false;
  if (count == 0) {  // never written: `expert` is not 0 then
    wait = {};
    return true;
  }
  std::memcpy(static_cast<void*>(&wait), words.data(), sizeof(wait));
  wait.text[sizeof(wait.text) - 1] = 0;
  wait.status.what = "";
  return true;
}

}  // namespace ubep
