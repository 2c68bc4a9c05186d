#include "memory/row_words.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace ubep {

std::uint64_t load_relaxed(const std::byte* from) {
  auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
  return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_relaxed);
}

void store_relaxed(std::byte* to, std::uint64_t value) {
  auto* word = reinterpret_cast<std::uint64_t*>(to);
  std::atomic_ref<std::uint64_t>(*word).store(value, std::memory_order_relaxed);
}

namespace {

// The word of private memory that begins at `from`; what lies after `bytes` counts as zero.
std::uint64_t word_at(const std::byte* from, std::size_t bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, std::min(bytes, kWordBytes));
  return word;
}

}  // namespace

void store_words(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + kWordBytes <= bytes; i += kWordBytes) {
    store_relaxed(to + i, word_at(from + i, kWordBytes));
  }
  if (i < bytes) store_relaxed(to + i, word_at(from + i, bytes - i));
}

void store_words_without(std::uint64_t empty, std::byte* to, const std::byte* from,
                         std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kWordBytes) {
    const std::uint64_t word = word_at(from + i, bytes - i);
    store_relaxed(to + i, word == empty ? word ^ 2 : word);
  }
}

void load_words(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kWordBytes) {
    const std::uint64_t word = load_relaxed(from + i);
    std::memcpy(to + i, &word, std::min(kWordBytes, bytes - i));
  }
}

bool load_words_unless(std::uint64_t empty, std::byte* to, const std::byte* from,
                       std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kWordBytes) {
    const std::uint64_t word = load_relaxed(from + i);
    if (word == empty) return false;
    if (to != nullptr) std::memcpy(to + i, &word, std::min(kWordBytes, bytes - i));
  }
  return true;
}

void fill_words(std::byte* to, std::uint64_t value, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) store_relaxed(to + i * kWordBytes, value);
}

bool has_word(std::uint64_t value, const std::byte* row, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kWordBytes) {
    if (word_at(row + i, bytes - i) == value) return true;
  }
  return false;
}

}  // namespace ubep
