#include "fabric/shm/shared_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr std::uint64_t kBytes = 8192;

TEST(SharedFileTest, WhatAPeerStoresIsThere) {
  const SharedFile own = SharedFile::create(kInboxFile, kBytes);
  const SharedFile peer = SharedFile::attach(kInboxFile, dup(own.fd()), kBytes, 1);
  peer.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(own.data()[kBytes - 1], std::byte{7});
}

TEST(SharedFileTest, NobodyCanCutOrGrowIt) {
  const SharedFile own = SharedFile::create(kInboxFile, kBytes);
  EXPECT_NE(ftruncate(own.fd(), 0), 0);
  EXPECT_NE(ftruncate(own.fd(), 2 * kBytes), 0);
  EXPECT_NE(fcntl(own.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0) << "the seals are sealed";
}

// A peer that could cut its file later would end this process when it is touched.
TEST(SharedFileTest, UnsealedAndWrongSizesAreRefused) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, kBytes), 0);
  EXPECT_THROW((void)SharedFile::attach(kInboxFile, unsealed, kBytes, 1), Error);
  const SharedFile own = SharedFile::create(kInboxFile, kBytes);
  EXPECT_THROW((void)SharedFile::attach(kInboxFile, dup(own.fd()), kBytes / 2, 1), Error);
  EXPECT_THROW((void)SharedFile::create(kInboxFile, std::uint64_t{1} << 63), Error);
}

// Asked for its seals such a file has no answer, which must not count as all of them.
TEST(SharedFileTest, FilesThatCannotBeSealedAreRefused) {
  for (const SharedFileKind& kind : {kSegmentFile, kInboxFile}) {
    std::FILE* file = std::tmpfile();
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(ftruncate(fileno(file), kBytes), 0);
    EXPECT_THROW((void)SharedFile::attach(kind, dup(fileno(file)), kBytes, 1), Error) << kind.name;
    std::fclose(file);
  }
}

// Touching one where no huge page is free ends the process.
TEST(SharedFileTest, FilesOfHugePagesAreRefused) {
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (fd < 0 || ftruncate(fd, kHuge) != 0 || fcntl(fd, F_ADD_SEALS, kSegmentFile.seals) != 0) {
    if (fd >= 0) close(fd);
    GTEST_SKIP() << "no files of huge pages here";
  }
  EXPECT_THROW((void)SharedFile::attach(kSegmentFile, fd, kHuge, 1), Error);
}

TEST(SharedFileTest, MovesOnce) {
  SharedFile a = SharedFile::create(kInboxFile, kBytes);
  const int fd = a.fd();
  SharedFile b = std::move(a);
  EXPECT_EQ(b.fd(), fd);
  EXPECT_EQ(a.fd(), -1);  // NOLINT(bugprone-use-after-move): what is left is the point
  a = std::move(b);
  EXPECT_EQ(a.fd(), fd);
}

}  // namespace
}  // namespace ubep
