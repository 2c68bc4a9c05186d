#include "fabric/shm/memory_limit.hpp"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

namespace ubep {
namespace {

TEST(MemoryLimitTest, LiesBetweenNothingAndTheWholeMachine) {
  struct sysinfo info = {};
  ASSERT_EQ(sysinfo(&info), 0);
  const std::uint64_t available = available_memory_bytes();
  // This process runs, so there is some; and no group has more than the machine.
  EXPECT_GT(available, std::uint64_t{1} << 20);
  EXPECT_LE(available, static_cast<std::uint64_t>(info.totalram) * info.mem_unit);
}

}  // namespace
}  // namespace ubep
