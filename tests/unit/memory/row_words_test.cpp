#include "memory/row_words.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace ubep {
namespace {

TEST(RowWordsTest, RowsOfAnyLengthComeBack) {
  for (std::size_t bytes = 0; bytes <= 40; ++bytes) {
    std::vector<std::byte> row(bytes);
    for (std::size_t i = 0; i < bytes; ++i) row[i] = static_cast<std::byte>(i + 1);
    alignas(8) std::array<std::byte, 48> memory;
    memory.fill(std::byte{0xee});
    store_words(memory.data(), row.data(), bytes);
    for (std::size_t i = bytes; i < memory.size(); ++i) {
      EXPECT_EQ(memory[i], i < words_of(bytes) * 8 ? std::byte{0} : std::byte{0xee});
    }
    std::vector<std::byte> got(bytes + 1, std::byte{0x11});
    load_words(got.data(), memory.data(), bytes);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), got.begin()));
    EXPECT_EQ(got.back(), std::byte{0x11});
  }
}

TEST(RowWordsTest, AWordThatWouldBeEmptyIsStoredAsAnotherOne) {
  constexpr std::uint64_t kEmpty = 0x7fc1'7fc1'7fc1'7fc1;
  const std::array<std::uint64_t, 3> row = {1, kEmpty, 3};
  std::array<std::uint64_t, 3> stored = {};
  store_words_without(kEmpty, reinterpret_cast<std::byte*>(stored.data()),
                      reinterpret_cast<const std::byte*>(row.data()), sizeof(row));
  EXPECT_EQ(stored, (std::array<std::uint64_t, 3>{1, kEmpty ^ 2, 3}));
}

TEST(RowWordsTest, AnEmptyWordIsSeenAnywhere) {
  alignas(8) std::array<std::byte, 40> memory = {};
  for (std::size_t i = 0; i < 5; ++i) {
    fill_words(memory.data(), 3, 5);
    EXPECT_TRUE(load_words_unless(9, nullptr, memory.data(), 33));
    store_relaxed(memory.data() + i * 8, 9);
    EXPECT_EQ(load_relaxed(memory.data() + i * 8), 9U);
    EXPECT_FALSE(load_words_unless(9, nullptr, memory.data(), 33));
    EXPECT_TRUE(has_word(9, memory.data(), 33) || i == 4);
  }
  EXPECT_FALSE(has_word(9, memory.data(), 32));
  EXPECT_TRUE(has_word(9, memory.data(), 33));  // zeros behind the ninth byte of the last word
}

}  // namespace
}  // namespace ubep
