#include "memory/private_rows.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ubep/status.hpp"

namespace ubep {
namespace {

TEST(PrivateRowsTest, IsZeroAndWritable) {
  const PrivateRows rows(10'000);
  EXPECT_EQ(rows.data()[0], std::byte{0});
  EXPECT_EQ(rows.data()[9'999], std::byte{0});
  rows.data()[9'999] = std::byte{7};
  EXPECT_EQ(rows.data()[9'999], std::byte{7});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.data()) % 64, 0U);
}

TEST(PrivateRowsTest, NothingNeedsNoMemory) { EXPECT_EQ(PrivateRows(0).data(), nullptr); }

// Far more than any machine has: only address space.
TEST(PrivateRowsTest, ReservesWithoutTaking) {
  constexpr std::size_t kBytes = std::size_t{1} << 36;
  const PrivateRows rows(kBytes);
  rows.data()[kBytes - 1] = std::byte{1};
  EXPECT_EQ(rows.data()[kBytes - 1], std::byte{1});
}

TEST(PrivateRowsTest, TooMuchIsAnErrorThatNamesTheBytes) {
  try {
    const PrivateRows rows(std::size_t{1} << 62);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::setup);
    EXPECT_NE(std::string(error.what()).find("4611686018427387904"), std::string::npos);
  }
}

TEST(PrivateRowsTest, MovesItsMemory) {
  PrivateRows a(4096);
  std::byte* data = a.data();
  data[1] = std::byte{3};
  PrivateRows b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): what this test is about
  PrivateRows c(4096);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.data()[1], std::byte{3});
}

// From 1 MiB on an area begins on a huge page, and is reserved with room for that.
TEST(PrivateRowsTest, LargeAreasBeginOnAHugePage) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(PrivateRows::reserved_bytes(kMiB - 1), kMiB - 1);
  EXPECT_EQ(PrivateRows::reserved_bytes(kMiB), 4 * kMiB);
  EXPECT_EQ(PrivateRows::reserved_bytes(2 * kMiB), 4 * kMiB);
  EXPECT_EQ(PrivateRows::reserved_bytes(2 * kMiB + 1), 6 * kMiB);
  for (const std::size_t bytes : {kMiB, 2 * kMiB + 1, 7 * kMiB}) {
    const PrivateRows rows(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.data()) % (2 * kMiB), 0U);
    rows.data()[bytes - 1] = std::byte{1};
  }
}

// One byte in each of many areas, as a simulated rank leaves them: small pages stay small.
TEST(PrivateRowsTest, SparseAreasTakeNoHugePages) {
  const PrivateRows rows(std::size_t{64} << 20, PrivateRows::Use::sparse);
  rows.data()[std::size_t{32} << 20] = std::byte{1};
  std::vector<unsigned char> resident(512);
  const auto first = reinterpret_cast<std::uintptr_t>(rows.data()) + (std::size_t{32} << 20);
  const std::uintptr_t huge = (first + (std::size_t{2} << 20) - 1) >> 21 << 21;
  ASSERT_EQ(mincore(reinterpret_cast<void*>(huge - (std::size_t{2} << 20)), std::size_t{2} << 20,
                    resident.data()),
            0);
  EXPECT_LE(std::count_if(resident.begin(), resident.end(), [](auto page) { return page & 1; }), 1);
}

// A forked child maps something else where the rows were; the destructor must leave it alone.
TEST(PrivateRowsTest, AForkedChildHasNoneAndUnmapsNothing) {
  auto rows = std::make_unique<PrivateRows>(4096);
  std::byte* place = rows->data();
  const pid_t child = fork();
  if (child == 0) {
    void* other = mmap(place, 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (other != place) _exit(1);  // inherited after all
    *place = std::byte{9};
    rows.reset();
    _exit(*place == std::byte{9} ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace ubep
