#include "trainer.hpp"

#include <algorithm>
#include <numeric>

namespace train {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

int begin_of(int rank, int ranks, int shards) { return rank * shards / ranks; }

int most_shards(int ranks, int shards) { return (shards + ranks - 1) / ranks; }

MoeShape with_room(const TrainOptions& options, const Data& data, int ranks) {
  MoeShape shape = options.shape;
  shape.max_tokens = most_shards(ranks, options.shards) * data.max_count();
  return shape;
}

std::int64_t columns_of(const MoeShape& shape) {
  return 1 + std::int64_t{Trainer::kLayers} * shape.experts * shape.hidden;
}

// One "expert" for each rank, which only listens: a token that chooses all of them is sent to all.
ubep::CommunicatorOptions for_sums(const TrainOptions& options, int ranks) {
  return {.num_experts = ranks,
          .max_tokens = most_shards(ranks, options.shards),
          .max_hidden = static_cast<int>(columns_of(options.shape)),
          .max_dtype = ubep::DType::fp32,
          .max_topk = ranks};
}

}  // namespace

Trainer::Trainer(const ubep::Bootstrap& bootstrap, const TrainOptions& options)
    : options_(options),
      data_(options.seed, options.shape.hidden, options.shards, options.tokens),
      first_shard_(begin_of(bootstrap.rank, bootstrap.size, options.shards)),
      end_shard_(begin_of(bootstrap.rank + 1, bootstrap.size, options.shards)),
      tokens_(ubep::Communicator::create(
          bootstrap, with_room(options, data_, bootstrap.size).communicator(bootstrap.size))),
      sums_(ubep::Communicator::create(bootstrap, for_sums(options, bootstrap.size))) {
  for (int i = 0; i < kLayers; ++i) {
    layers_.emplace_back(with_room(options, data_, bootstrap.size), bootstrap.rank, bootstrap.size,
                         options.seed + static_cast<std::uint64_t>(i) + 1);
  }
  for (int shard = first_shard_; shard < end_shard_; ++shard) {
    for (int rank = 0; rank < bootstrap.size; ++rank) everybody_.push_back(rank);
  }
  weights_.resize(everybody_.size(), 1);
}

float Trainer::step(int number) {
  h_[0].clear();
  target_.clear();
  int tokens_of_all = 0;
  for (int shard = 0; shard < data_.shards(); ++shard) {
    tokens_of_all += data_.count(number, shard);
    if (shard >= first_shard_ && shard < end_shard_) {
      data_.append(number, shard, h_[0], target_);
    }
  }
  forward();
  backward(tokens_of_all);
  sum_own_shards(number);
  add_all_shards();
  descend();
  return total_[0] / static_cast<float>(tokens_of_all);
}

void Trainer::forward() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].forward(tokens_, h_[i], h_[i + 1]);
    for (std::size_t j = 0; j < h_[i].size(); ++j) h_[i + 1][j] += h_[i][j];
  }
}

void Trainer::backward(int tokens_of_all) {
  const float factor = 1 / static_cast<float>(tokens_of_all);
  gradient_.resize(target_.size());
  for (std::size_t j = 0; j < target_.size(); ++j) {
    gradient_[j] = factor * (h_[kLayers][j] - target_[j]);
  }
  std::vector<float> through_layer;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    layers_[i].backward(tokens_, gradient_, through_layer);
    for (std::size_t j = 0; j < gradient_.size(); ++j) gradient_[j] += through_layer[j];
  }
}

// Loss and gradients of the gates over the tokens of each of the own shards.
void Trainer::sum_own_shards(int number) {
  const std::int64_t columns = columns_of(options_.shape);
  const std::int64_t hidden = options_.shape.hidden;
  partial_.assign(at((end_shard_ - first_shard_) * columns), 0);
  std::int64_t token = 0;
  for (int shard = first_shard_; shard < end_shard_; ++shard) {
    float* sum = partial_.data() + (shard - first_shard_) * columns;
    const std::int64_t count = data_.count(number, shard);
    for (std::int64_t j = token * hidden; j < (token + count) * hidden; ++j) {
      const float distance = h_[kLayers][at(j)] - target_[at(j)];
      *sum += 0.5F * distance * distance;
    }
    ++sum;
    for (const MoeLayer& layer : layers_) {
      layer.add_gate_gradient(token, count, {sum, layer.gate.size()});
      sum += layer.gate.size();
    }
    token += count;
  }
}

// Each rank sends its sums to all, and adds those of all in the order of the shards: the bits are
// the same on all ranks, however many there are.
void Trainer::add_all_shards() {
  const std::int64_t own = end_shard_ - first_shard_;
  const std::int64_t columns = columns_of(options_.shape);
  sums_
      .dispatch({partial_.data(), own, columns, ubep::DType::fp32},
                {everybody_, weights_, sums_.size()}, {}, handle_)
      .or_throw();
  const ubep::Received& received = handle_.received();
  total_.assign(at(columns), 0);
  for (std::int64_t shard = 0; shard < received.num_rows; ++shard) {
    const auto* row = reinterpret_cast<const float*>(received.row(shard));
    for (std::size_t i = 0; i < total_.size(); ++i) total_[i] += row[i];
  }
  sums_.release(handle_);
}

void Trainer::descend() {
  const auto move = [this](std::vector<float>& weights, const float* gradient) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= options_.rate * gradient[i];
  };
  const float* gate_gradient = total_.data() + 1;
  for (MoeLayer& layer : layers_) {
    move(layer.gate, gate_gradient);
    gate_gradient += layer.gate.size();
    for (Expert& expert : layer.experts) {
      move(expert.w1, expert.dw1.data());
      move(expert.w2, expert.dw2.data());
    }
  }
}

}  // namespace train
