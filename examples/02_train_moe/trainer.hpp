// Two layers of experts on the ranks of a communicator, trained by SGD.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "data.hpp"
#include "moe_layer.hpp"
#include "ubep/ubep.hpp"

namespace train {

struct TrainOptions {
  int shards = 4;   // at least as many as ranks
  int tokens = 24;  // of a shard, on the average
  float rate = 0.05F;
  std::uint64_t seed = 1;
  MoeShape shape;
};

class Trainer {
 public:
  static constexpr int kLayers = 2;

  Trainer(const ubep::Bootstrap& bootstrap, const TrainOptions& options);

  // One step of SGD on the tokens of this step; returns their loss, the same on all ranks: half the
  // squared distance to the target, the mean over tokens.
  float step(int number);

  // Of this rank, by layer.
  const MoeLayer& layer(int number) const { return layers_[static_cast<std::size_t>(number)]; }

 private:
  void forward();
  void backward(int tokens_of_all);
  void sum_own_shards(int number);
  void add_all_shards();
  void descend();

  TrainOptions options_;
  Data data_;
  int first_shard_;
  int end_shard_;
  ubep::Communicator tokens_;  // tokens to experts
  ubep::Communicator sums_;    // gradients of the gates to everybody
  std::vector<MoeLayer> layers_;
  std::array<std::vector<float>, kLayers + 1> h_;  // input of each layer, and the output
  std::vector<float> target_;
  std::vector<float> gradient_;  // of h_[i], from the last to the first
  std::vector<float> partial_;   // [own shards, columns]: loss, then the gradient of each gate
  std::vector<std::int32_t> everybody_;  // [own shards, ranks] all ranks for each shard
  std::vector<float> weights_;           // as many, of no use
  ubep::Handle handle_;                  // of sums_
  std::vector<float> total_;             // [columns] over all shards
};

}  // namespace train
