// What the shared-memory fabric offers beyond the concept (which tests/conformance covers).
#include "fabric/shm/fabric.hpp"

#include <gtest/gtest.h>

#include "base/math.hpp"
#include "support/fabric_groups.hpp"

namespace ubep {
namespace {

constexpr std::uint64_t kBytes = 4 * kPageBytes;

TEST(ShmFabricTest, SegmentsAreMapped) {
  test::ShmGroup group({kBytes, kBytes});
  EXPECT_TRUE(group.rank(0).facts().mapped);
  group.rank(1).claim({kPageBytes, 8})[0] = std::byte{5};
  EXPECT_EQ(group.rank(0).acquire(1, {kPageBytes, 8})[0], std::byte{5});
}

TEST(ShmFabricTest, AViewShowsAllRanksSideBySide) {
  constexpr int kRanks = 3;
  constexpr Range kPart{kPageBytes, 2 * kPageBytes};
  test::ShmGroup group({kBytes, 2 * kBytes, kBytes});
  const std::byte* view = group.rank(1).map_side_by_side(kPart);
  for (int r = 0; r < kRanks; ++r) {
    std::byte* bytes = group.rank(r).claim(kPart);
    bytes[0] = static_cast<std::byte>(r + 1);
    bytes[kPart.bytes - 1] = static_cast<std::byte>(r + 11);
    const std::byte* shown = view + static_cast<std::uint64_t>(r) * kPart.bytes;
    EXPECT_EQ(shown[0], static_cast<std::byte>(r + 1));
    EXPECT_EQ(shown[kPart.bytes - 1], static_cast<std::byte>(r + 11));
  }
}

// One view per range for the life of the fabric: dispatches come by thousands.
TEST(ShmFabricTest, TheSameViewIsGivenAgain) {
  test::ShmGroup group({kBytes, kBytes});
  const std::byte* first = group.rank(0).map_side_by_side({kPageBytes, kPageBytes});
  const std::byte* second = group.rank(0).map_side_by_side({2 * kPageBytes, kPageBytes});
  EXPECT_NE(first, second);
  EXPECT_EQ(group.rank(0).map_side_by_side({kPageBytes, kPageBytes}), first);
  EXPECT_EQ(group.rank(0).map_side_by_side({2 * kPageBytes, kPageBytes}), second);
}

}  // namespace
}  // namespace ubep
