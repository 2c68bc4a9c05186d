// A set of ranks below a size that is given at construction.
//
//   RankSet waiting = RankSet::all(size);
//   waiting.for_each([&](int q) { if (has_come(q)) waiting.erase(q); });
//
// Every loop runs over the words that the size needs: one for up to 64 ranks. Operands of one
// operation have the same size.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/group_config.hpp"

namespace ubep {

// Bit `rank` of a bitmap that users see (Status::missing, Received::sources); it holds the
// first 64.
inline std::uint64_t low_bit(int rank) { return rank < 64 ? std::uint64_t{1} << rank : 0; }

template <int most>
class RankSetUpTo {
 public:
  RankSetUpTo() : RankSetUpTo(0) {}  // of no ranks
  explicit RankSetUpTo(int size) : count_((static_cast<std::size_t>(size) + 63) / 64) { clear(); }
  RankSetUpTo(const RankSetUpTo& other) { *this = other; }
  RankSetUpTo& operator=(const RankSetUpTo& other) {
    count_ = other.count_;
    for_words([&](std::size_t i) { words_[i] = other.words_[i]; });
    return *this;
  }
  ~RankSetUpTo() = default;

  static RankSetUpTo all(int size) {
    RankSetUpTo set(size);
    set.for_words([&](std::size_t i) { set.words_[i] = ~std::uint64_t{0}; });
    if (size % 64 != 0) set.words_[word_of(size)] >>= 64 - size % 64;
    return set;
  }

  void insert(int rank) { words_[word_of(rank)] |= bit_of(rank); }
  void erase(int rank) { words_[word_of(rank)] &= ~bit_of(rank); }
  bool contains(int rank) const { return (words_[word_of(rank)] & bit_of(rank)) != 0; }
  void clear() {
    for_words([&](std::size_t i) { words_[i] = 0; });
  }
  bool empty() const {
    return !any_word([&](std::size_t i) { return words_[i] != 0; });
  }
  // The lowest rank of a set that is not empty.
  int first() const {
    std::size_t i = 0;
    while (words_[i] == 0) ++i;
    return static_cast<int>(i) * 64 + std::countr_zero(words_[i]);
  }

  RankSetUpTo& operator&=(const RankSetUpTo& other) {
    for_words([&](std::size_t i) { words_[i] &= other.words_[i]; });
    return *this;
  }
  RankSetUpTo& operator|=(const RankSetUpTo& other) {
    for_words([&](std::size_t i) { words_[i] |= other.words_[i]; });
    return *this;
  }
  RankSetUpTo& operator-=(const RankSetUpTo& other) {
    for_words([&](std::size_t i) { words_[i] &= ~other.words_[i]; });
    return *this;
  }
  bool operator==(const RankSetUpTo& other) const {
    return !any_word([&](std::size_t i) { return words_[i] != other.words_[i]; });
  }
  bool meets(const RankSetUpTo& other) const {
    return any_word([&](std::size_t i) { return (words_[i] & other.words_[i]) != 0; });
  }

  // Calls f(rank) in ascending order. f may erase its rank and those before it.
  template <class F>
  void for_each(F&& f) const {
    std::size_t i = 0;
    do {
      for (std::uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        f(static_cast<int>(i) * 64 + std::countr_zero(rest));
      }
    } while (++i < count_);
  }

  // The first 64 ranks as a bitmap.
  std::uint64_t low() const { return words_[0]; }
  // Calls f(number, word) for each 64 ranks.
  template <class F>
  void for_each_word(F&& f) const {
    for_words([&](std::size_t i) { f(i, words_[i]); });
  }

 private:
  static std::size_t word_of(int rank) {
    return most <= 64 ? 0 : static_cast<std::size_t>(rank) / 64;
  }
  static std::uint64_t bit_of(int rank) { return std::uint64_t{1} << (rank % 64); }

  // The first word stands outside of the loops: most sets have no other.
  template <class F>
  void for_words(F f) const {
    f(std::size_t{0});
    for (std::size_t i = 1; most > 64 && i < count_; ++i) f(i);
  }
  template <class F>
  bool any_word(F f) const {
    if (f(std::size_t{0})) return true;
    for (std::size_t i = 1; most > 64 && i < count_; ++i) {
      if (f(i)) return true;
    }
    return false;
  }

  std::size_t count_ = 0;
  std::array<std::uint64_t, most / 64> words_;  // those in use, and always the first, have values
};

using RankSet = RankSetUpTo<kMostRanks>;
using FewRanks = RankSetUpTo<64>;  // fits a register

}  // namespace ubep
