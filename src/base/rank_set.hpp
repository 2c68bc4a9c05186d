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
#include <span>

#include "base/group_config.hpp"

namespace ubep {

// Bit `rank` of a bitmap that users see (Status::missing, Received::sources); it holds the
// first 64.
inline std::uint64_t low_bit(int rank) { return rank < 64 ? std::uint64_t{1} << rank : 0; }

template <int most>
class RankSetUpTo {
 public:
  RankSetUpTo() = default;  // of no ranks: it stays empty
  explicit RankSetUpTo(int size) : used_((static_cast<std::size_t>(size) + 63) / 64) {}

  static RankSetUpTo all(int size) {
    RankSetUpTo set(size);
    for (std::size_t i = 0; i < set.count(); ++i) set.words_[i] = ~std::uint64_t{0};
    if (size % 64 != 0) set.words_[set.count() - 1] >>= 64 - size % 64;
    return set;
  }

  void insert(int rank) { words_[word_of(rank)] |= bit_of(rank); }
  void erase(int rank) { words_[word_of(rank)] &= ~bit_of(rank); }
  bool contains(int rank) const { return (words_[word_of(rank)] & bit_of(rank)) != 0; }
  void clear() {
    for (std::size_t i = 0; i < count(); ++i) words_[i] = 0;
  }
  bool empty() const {
    for (std::size_t i = 0; i < count(); ++i) {
      if (words_[i] != 0) return false;
    }
    return true;
  }
  // The lowest rank of a set that is not empty.
  int first() const {
    std::size_t i = 0;
    while (i + 1 < count() && words_[i] == 0) ++i;
    return static_cast<int>(i) * 64 + std::countr_zero(words_[i]);
  }

  RankSetUpTo& operator&=(const RankSetUpTo& other) {
    for (std::size_t i = 0; i < count(); ++i) words_[i] &= other.words_[i];
    return *this;
  }
  RankSetUpTo& operator|=(const RankSetUpTo& other) {
    for (std::size_t i = 0; i < count(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  RankSetUpTo& operator-=(const RankSetUpTo& other) {
    for (std::size_t i = 0; i < count(); ++i) words_[i] &= ~other.words_[i];
    return *this;
  }
  bool operator==(const RankSetUpTo& other) const {
    for (std::size_t i = 0; i < count(); ++i) {
      if (words_[i] != other.words_[i]) return false;
    }
    return count() == other.count();
  }
  bool meets(const RankSetUpTo& other) const {
    for (std::size_t i = 0; i < count(); ++i) {
      if ((words_[i] & other.words_[i]) != 0) return true;
    }
    return false;
  }

  // Calls f(rank) in ascending order. f may erase its rank and those before it.
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t i = 0; i < count(); ++i) {
      for (std::uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        f(static_cast<int>(i) * 64 + std::countr_zero(rest));
      }
    }
  }

  // The first 64 ranks as a bitmap.
  std::uint64_t low() const { return words_[0]; }
  std::span<const std::uint64_t> words() const { return {words_.data(), count()}; }

 private:
  static std::size_t word_of(int rank) {
    return most <= 64 ? 0 : static_cast<std::size_t>(rank) / 64;
  }
  static std::uint64_t bit_of(int rank) { return std::uint64_t{1} << (rank % 64); }

  std::size_t count() const { return most <= 64 ? 1 : used_; }

  std::size_t used_ = 0;
  std::array<std::uint64_t, most / 64> words_ = {};
};

using RankSet = RankSetUpTo<kMostRanks>;
using FewRanks = RankSetUpTo<64>;  // fits a register

}  // namespace ubep
