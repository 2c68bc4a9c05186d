// A RankSet that lanes publish and look into. Always of one size.
#pragma once

#include <array>
#include <cstddef>

#include "base/rank_set.hpp"
#include "memory/word.hpp"

namespace ubep {

class LaneSet {
 public:
  // Each word is published by itself: a lane may see some ranks of a new set before others.
  void store_release(const RankSet& ranks) {
    ranks.for_each_word([&](std::size_t i, std::uint64_t word) { words_[i].store_release(word); });
  }
  // Any lane puts a rank in.
  void insert_release(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    words_[r / 64].or_release(std::uint64_t{1} << r % 64);
  }
  // Whether `rank` is in the set; then what was stored before it was put there is visible.
  bool load_acquire(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return (words_[r / 64].load_acquire() >> r % 64 & 1) != 0;
  }

 private:
  std::array<LaneWord, kMostRanks / 64> words_;
};

}  // namespace ubep
