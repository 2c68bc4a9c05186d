// Made-up data: tokens of some classes, and what a layer should make of each class.
//
// The tokens of a step come in shards, whoever computes them: a rank has some shards, one after the
// other. So one process and several see the same tokens in the same order.
#pragma once

#include <cstdint>
#include <vector>

namespace train {

class Data {
 public:
  Data(std::uint64_t seed, int hidden, int shards, int tokens);

  int shards() const { return shards_; }
  // Of one shard in one step: 0 in some, at most max_count().
  int count(int step, int shard) const;
  int max_count() const { return 2 * tokens_; }
  // Appends x and target, [count(), hidden] each.
  void append(int step, int shard, std::vector<float>& x, std::vector<float>& target) const;

 private:
  static constexpr int kClasses = 6;

  std::uint64_t seed_;
  int hidden_;
  int shards_;
  int tokens_;
  std::vector<float> centres_;  // [classes, hidden]
  std::vector<float> maps_;     // [classes, hidden, hidden]
};

}  // namespace train
