#include "memory/crc32c.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace ubep {
namespace {

std::uint32_t sum_of(const std::string& text) {
  return crc32c(0, reinterpret_cast<const std::byte*>(text.data()), text.size());
}

// The check value of the catalogue, and RFC 3720 (iSCSI), B.4.
TEST(Crc32cTest, IsTheOneOfTheStandards) {
  EXPECT_EQ(sum_of("123456789"), 0xE3069283U);
  EXPECT_EQ(sum_of(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(sum_of(std::string(32, '\xff')), 0x62A8AB43U);
  EXPECT_EQ(sum_of(""), 0U);
}

TEST(Crc32cTest, GoesOnAndIsTheSameByTable) {
  test::Random random(4);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> data(static_cast<std::size_t>(random.between(0, 300)));
    for (std::byte& byte : data) byte = static_cast<std::byte>(random.below(256));
    const auto cut = static_cast<std::size_t>(random.below(static_cast<int>(data.size()) + 1));
    const std::uint32_t whole = crc32c(0, data.data(), data.size());
    EXPECT_EQ(crc32c_by_table(0, data.data(), data.size()), whole);
    EXPECT_EQ(crc32c(crc32c(0, data.data(), cut), data.data() + cut, data.size() - cut), whole);
  }
}

}  // namespace
}  // namespace ubep
