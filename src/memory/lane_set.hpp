// Sets that lanes publish and look into: of ranks, always of one size, and of any number of things.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

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

// Numbers 0..count-1.
class LaneFlags {
 public:
  // While no lane looks: empty, for so many.
  void clear(std::size_t count) {
    const std::size_t words = (count + 63) / 64;
    if (words_.size() != words) words_ = std::vector<LaneWord>(words);
    for (LaneWord& word : words_) word.store_release(0);
  }
  // Whether this lane is the one that put `i` in.
  bool try_insert(std::size_t i) { return words_[i / 64].try_set(std::uint64_t{1} << i % 64); }
  // Whether `i` is in; then what was stored before it was put there is visible.
  bool load_acquire(std::size_t i) const {
    return (words_[i / 64].load_acquire() >> i % 64 & 1) != 0;
  }

 private:
  std::vector<LaneWord> words_;
};

}  // namespace ubep
