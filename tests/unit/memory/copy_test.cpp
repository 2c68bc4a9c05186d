#include "memory/copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/math.hpp"
#include "support/random.hpp"

namespace ubep {
namespace {

using test::Random;

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kMargin = 128;

// Aligned memory between guards: [margin | room | margin].
class Guarded {
 public:
  explicit Guarded(std::size_t room) : room_(room), memory_(room + 2 * kMargin + 64, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + kMargin);
    data_ = memory_.data() + kMargin + (64 - address % 64) % 64;
  }
  std::byte* data() { return data_; }
  // Nothing before data or from `used` on was written.
  bool intact_beyond(std::size_t used) const {
    for (const std::byte* p = memory_.data(); p != data_; ++p) {
      if (*p != kGuard) return false;
    }
    for (const std::byte* p = data_ + used; p != memory_.data() + memory_.size(); ++p) {
      if (*p != kGuard) return false;
    }
    return used <= room_;
  }

 private:
  std::size_t room_;
  std::vector<std::byte> memory_;
  std::byte* data_;
};

std::vector<std::byte> random_bytes(std::size_t size) {
  Random random(size + 1);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

// All sizes around whole lines, sources at all alignments.
TEST(CopyTest, StreamingWritesTheBytesAndAtMostTheirLastLine) {
  for (std::size_t bytes = 0; bytes <= 300; ++bytes) {
    for (std::size_t shift = 0; shift < 16; ++shift) {
      const std::vector<std::byte> source = random_bytes(bytes + shift);
      Guarded to(round_up(bytes, 64));
      copy_streaming(to.data(), source.data() + shift, bytes);
      store_fence();
      ASSERT_TRUE(
          std::equal(source.begin() + static_cast<std::ptrdiff_t>(shift), source.end(), to.data()))
          << bytes << " " << shift;
      ASSERT_TRUE(to.intact_beyond(round_up(bytes, 64))) << bytes << " " << shift;
    }
  }
}

TEST(CopyTest, PlainWritesTheBytesOnly) {
  for (std::size_t bytes = 0; bytes <= 200; ++bytes) {
    const std::vector<std::byte> source = random_bytes(bytes + 3);
    Guarded to(bytes);
    copy_plain(to.data(), source.data() + 3, bytes);
    ASSERT_EQ(std::memcmp(to.data(), source.data() + 3, bytes), 0) << bytes;
    ASSERT_TRUE(to.intact_beyond(bytes)) << bytes;
  }
}

TEST(CopyTest, BothPoliciesCopyARow) {
  for (const Store store : {Store::near, Store::far}) {
    const std::vector<std::byte> source = random_bytes(7168);
    Guarded to(source.size());
    copy_with(store, to.data(), source.data(), source.size());
    store_fence();
    EXPECT_EQ(std::memcmp(to.data(), source.data(), source.size()), 0) << name(store);
  }
}

TEST(CopyTest, NothingNeedsNoMemory) {
  copy_plain(nullptr, nullptr, 0);
  copy_streaming(nullptr, nullptr, 0);
  std::byte byte = kGuard;
  copy_with(Store::near, &byte, nullptr, 0);
  copy_with(Store::far, &byte, nullptr, 0);
  EXPECT_EQ(byte, kGuard);
}

}  // namespace
}  // namespace ubep
