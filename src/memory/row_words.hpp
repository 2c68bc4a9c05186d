// Rows in memory that one side reads while the other may still be writing: whole words of 8 bytes,
// each of which is there or not. None of this orders anything; flags do, or nothing needs to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ubep {

inline constexpr std::size_t kWordBytes = 8;

constexpr std::size_t words_of(std::size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

// Stores `bytes` in words_of(bytes) words; the rest of the last one is zero. `to` is 8-byte
// aligned.
void store_words(std::byte* to, const std::byte* from, std::size_t bytes);
// The same, but a word that would be `empty` is stored with its second lowest bit changed.
void store_words_without(std::uint64_t empty, std::byte* to, const std::byte* from,
                         std::size_t bytes);
// Loads `bytes`, from an 8-byte aligned place.
void load_words(std::byte* to, const std::byte* from, std::size_t bytes);
// The same unless one of the words is `empty`; then false, and `to` holds anything. Null: only
// looks.
bool load_words_unless(std::uint64_t empty, std::byte* to, const std::byte* from,
                       std::size_t bytes);
void fill_words(std::byte* to, std::uint64_t value, std::size_t words);
// Whether a row as store_words() would store it has a word of this value.
bool has_word(std::uint64_t value, const std::byte* row, std::size_t bytes);

// One word.
std::uint64_t load_relaxed(const std::byte* from);
void store_relaxed(std::byte* to, std::uint64_t value);

}  // namespace ubep
