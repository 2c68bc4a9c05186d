#include "data.hpp"

#include <cmath>

#include "random.hpp"

namespace train {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Data::Data(std::uint64_t seed, int hidden, int shards, int tokens)
    : seed_(seed), hidden_(hidden), shards_(shards), tokens_(tokens) {
  const float most = std::sqrt(3.0F / static_cast<float>(hidden));
  centres_ = Random(seed, 1).uniform(at(kClasses) * at(hidden), 1);
  maps_ = Random(seed, 2).uniform(at(kClasses) * at(hidden) * at(hidden), most);
}

int Data::count(int step, int shard) const {
  if (shards_ > 1 && (step + shard) % (shards_ + 1) == 0) return 0;
  return tokens_ / 2 + (7 * shard + 3 * step) % (tokens_ + 1);
}

void Data::append(int step, int shard, std::vector<float>& x, std::vector<float>& target) const {
  Random random(seed_, static_cast<std::uint64_t>(step) + 3, static_cast<std::uint64_t>(shard));
  const int tokens = count(step, shard);
  for (int t = 0; t < tokens; ++t) {
    const int kind = static_cast<int>((random.uniform() + 1) / 2 * kClasses);
    const std::size_t begin = x.size();
    for (int h = 0; h < hidden_; ++h) {
      x.push_back(centres_[at(kind * hidden_ + h)] + 0.5F * random.uniform());
    }
    for (int h = 0; h < hidden_; ++h) {
      float sum = 0;
      const float* const row = maps_.data() + at(kind * hidden_ + h) * at(hidden_);
      for (int i = 0; i < hidden_; ++i) sum += row[i] * x[begin + at(i)];
      target.push_back(x[begin + at(h)] + std::tanh(sum));
    }
  }
}

}  // namespace train
