#include "fabric/shm/inbox.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr std::uint64_t kBytes = 8192;

TEST(InboxTest, WhatAPeerStoresIsThere) {
  const Inbox own = Inbox::create(kBytes);
  const Inbox peer = Inbox::attach(dup(own.fd()), kBytes, 1);
  peer.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(own.data()[kBytes - 1], std::byte{7});
}

TEST(InboxTest, NobodyCanCutOrGrowIt) {
  const Inbox own = Inbox::create(kBytes);
  EXPECT_NE(ftruncate(own.fd(), 0), 0);
  EXPECT_NE(ftruncate(own.fd(), 2 * kBytes), 0);
  EXPECT_NE(fcntl(own.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0) << "the seals are sealed";
}

// A peer that could cut its file later would end this process when it is touched.
TEST(InboxTest, UnsealedAndWrongSizesAreRefused) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, kBytes), 0);
  EXPECT_THROW((void)Inbox::attach(unsealed, kBytes, 1), Error);
  const Inbox own = Inbox::create(kBytes);
  EXPECT_THROW((void)Inbox::attach(dup(own.fd()), kBytes / 2, 1), Error);
  EXPECT_THROW((void)Inbox::create(std::uint64_t{1} << 63), Error);
}

TEST(InboxTest, MovesOnce) {
  Inbox a = Inbox::create(kBytes);
  const int fd = a.fd();
  Inbox b = std::move(a);
  EXPECT_EQ(b.fd(), fd);
  EXPECT_EQ(a.fd(), -1);  // NOLINT(bugprone-use-after-move): what is left is the point
  a = std::move(b);
  EXPECT_EQ(a.fd(), fd);
}

}  // namespace
}  // namespace ubep
