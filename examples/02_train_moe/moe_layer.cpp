#include "moe_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "random.hpp"

namespace train {
namespace {

using ubep::DType;
using ubep::Layout;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Row i of a matrix [.., width].
template <class Matrix>
auto row_of(Matrix& matrix, std::int64_t i, std::int64_t width) {
  return matrix.data() + i * width;
}

float dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float factor, const float* x, int count, float* sum) {
  for (int i = 0; i < count; ++i) sum[i] += factor * x[i];
}

float sigmoid(float z) { return 1 / (1 + std::exp(-z)); }

const float* floats(const std::byte* row) { return reinterpret_cast<const float*>(row); }

}  // namespace

ubep::CommunicatorOptions MoeShape::communicator(int ranks) const {
  return {.num_experts = experts,
          .max_tokens = max_tokens,
          .max_hidden = hidden + topk,
          .max_dtype = DType::fp32,
          .max_topk = topk,
          .expert_capacity = dispatch.layout == Layout::expert_padded ? ranks * max_tokens : 0};
}

int MoeShape::first_expert(int rank, int ranks) const {
  return rank * (experts / ranks) + std::min(rank, experts % ranks);
}

MoeLayer::MoeLayer(const MoeShape& shape, int rank, int ranks, std::uint64_t seed)
    : shape_(shape), activated_(at(shape.inner)), inner_gradients_(at(shape.inner)) {
  const std::size_t size = at(shape.hidden) * at(shape.inner);
  const float most = std::sqrt(3.0F / static_cast<float>(shape.hidden));
  gate = Random(seed).uniform(at(shape.experts) * at(shape.hidden), most);
  const int end = shape.first_expert(rank + 1, ranks);
  for (int id = shape.first_expert(rank, ranks); id < end; ++id) {
    Random random(seed, 1, static_cast<std::uint64_t>(id));
    Expert expert;
    expert.w1 = random.uniform(size, most);
    expert.w2 = random.uniform(size, std::sqrt(3.0F / static_cast<float>(shape.inner)));
    experts.push_back(std::move(expert));
  }
}

// The topk largest logits of each token, and their softmax.
void MoeLayer::choose(std::int64_t tokens) {
  const int hidden = shape_.hidden;
  const std::size_t topk = at(shape_.topk);
  topk_idx_.resize(at(tokens) * topk);
  topk_weights_.resize(topk_idx_.size());
  std::vector<float> logits(at(shape_.experts));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int e = 0; e < shape_.experts; ++e) {
      logits[at(e)] = dot(row_of(gate, e, hidden), row_of(x_, t, hidden), hidden);
    }
    std::int32_t* const idx = row_of(topk_idx_, t, shape_.topk);
    float* const weights = row_of(topk_weights_, t, shape_.topk);
    float sum = 0;
    float most = 0;
    for (std::size_t k = 0; k < topk; ++k) {
      const auto best = std::max_element(logits.begin(), logits.end());
      if (k == 0) most = *best;
      idx[k] = static_cast<std::int32_t>(best - logits.begin());
      weights[k] = std::exp(*best - most);
      sum += weights[k];
      *best = -INFINITY;
    }
    for (std::size_t k = 0; k < topk; ++k) weights[k] /= sum;
  }
}

// Which expert computes what: by expert, and for each in the order of (source, token, k),
// so that sums over rows do not depend on how tokens are spread over ranks.
void MoeLayer::list_tasks() {
  tasks_.clear();
  const ubep::Received& received = handle_.received();
  if (!ubep::is_by_expert(received.layout)) return list_tasks_of_shared_rows();
  const std::span<const float> weights = handle_.row_weights();
  const std::span<const std::int32_t> choices = handle_.row_choices();
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const std::int64_t first = received.expert_offsets[e];
    for (std::int64_t row = first; row < first + received.expert_counts[e]; ++row) {
      tasks_.push_back({row, row, static_cast<int>(e), choices[at(row)], weights[at(row)]});
    }
  }
}

// rank_major: a row is there once for all experts of this rank that its token chose, each once;
// with topk1 once for each of them.
void MoeLayer::list_tasks_of_shared_rows() {
  const ubep::Received& received = handle_.received();
  const bool by_owner = shape_.dispatch.weighting == ubep::Weighting::owner;
  const auto choices =
      shape_.dispatch.topk1 ? handle_.row_choices() : std::span<const std::int32_t>();
  for (std::size_t e = 0; e < experts.size(); ++e) {
    for (std::int64_t i = received.expert_offsets[e]; i < received.expert_offsets[e + 1]; ++i) {
      const std::int64_t row = received.expert_rows[at(i)];
      if (shape_.dispatch.topk1) {
        const float weight = received.topk_weights[at(row)];
        tasks_.push_back({row, by_owner ? i : row, static_cast<int>(e), choices[at(row)], weight});
        continue;
      }
      const std::size_t begin = at(row * shape_.topk);
      int k = 0;
      while (received.topk_idx[begin + at(k)] != static_cast<std::int32_t>(e)) ++k;
      const float weight = received.topk_weights[begin + at(k)];
      tasks_.push_back({row, by_owner ? i : row, static_cast<int>(e), k, weight});
    }
  }
}

void MoeLayer::forward(ubep::Communicator& comm, std::span<const float> x, std::vector<float>& y) {
  const int hidden = shape_.hidden;
  const std::int64_t tokens = std::ssize(x) / hidden;
  x_ = x;
  choose(tokens);
  comm.dispatch({x.data(), tokens, hidden, DType::fp32}, {topk_idx_, topk_weights_, shape_.topk},
                shape_.dispatch, handle_)
      .or_throw();

  list_tasks();
  const ubep::Received& received = handle_.received();
  received_.resize(at(received.num_rows * hidden));
  before_silu_.resize(tasks_.size() * at(shape_.inner));
  const ubep::Rows output = handle_.expert_output();
  for (std::int64_t i = 0; i < output.num_rows; ++i) {
    std::memset(output.row(i), 0, at(output.row_bytes()));
  }
  for (std::size_t number = 0; number < tasks_.size(); ++number) {
    const Task& task = tasks_[number];
    std::copy_n(floats(received.row(task.row)), hidden, row_of(received_, task.row, hidden));
    run_expert(task, number, reinterpret_cast<float*>(output.row(task.output)));
  }

  y.resize(x.size());
  comm.combine(handle_, {.out = {y.data(), tokens, hidden, DType::fp32}}).or_throw();
}

void MoeLayer::run_expert(const Task& task, std::size_t number, float* out) {
  const int hidden = shape_.hidden;
  const int inner = shape_.inner;
  const Expert& expert = experts[at(task.expert)];
  float* const z = before_silu_.data() + number * at(inner);
  for (int i = 0; i < inner; ++i) {
    z[i] = dot(row_of(expert.w1, i, hidden), row_of(received_, task.row, hidden), hidden);
    activated_[at(i)] = z[i] * sigmoid(z[i]);
  }
  // In rank_major the kernel weights its rows; elsewhere combine does.
  const bool weighted = !ubep::is_by_expert(shape_.dispatch.layout) &&
                        shape_.dispatch.weighting == ubep::Weighting::kernel;
  const float factor = weighted ? task.weight : 1;
  for (int h = 0; h < hidden; ++h) {
    out[h] += factor * dot(row_of(expert.w2, h, inner), activated_.data(), inner);
  }
}

// [backward]
void MoeLayer::backward(ubep::Communicator& comm, std::span<const float> dy,
                        std::vector<float>& dx) {
  const int hidden = shape_.hidden;
  const int topk = shape_.topk;
  const std::int64_t tokens = std::ssize(dy) / hidden;
  for (Expert& expert : experts) {
    expert.dw1.assign(expert.w1.size(), 0);
    expert.dw2.assign(expert.w2.size(), 0);
  }
  // The gradient goes where the tokens went: received row i is that of the token of row i.
  comm.dispatch({dy.data(), tokens, hidden, DType::fp32}, handle_, handle_).or_throw();

  // Both gradients go home in one combine: hidden columns for x, topk for the weights.
  const int width = hidden + topk;
  const std::int64_t outputs = handle_.expert_output().num_rows;
  std::vector<float> rows(at(outputs * width));
  for (std::size_t number = 0; number < tasks_.size(); ++number) {
    run_expert_backward(tasks_[number], number, row_of(rows, tasks_[number].output, width));
  }
  std::vector<float> home(at(tokens * width));
  comm.combine(handle_, {.out = {home.data(), tokens, width, DType::fp32},
                         .y = {rows.data(), outputs, width, DType::fp32},
                         .unweighted = true})
      .or_throw();

  // Through the softmax of the gate.
  dx.resize(dy.size());
  logit_gradients_.resize(topk_idx_.size());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* const dweights = row_of(home, t, width) + hidden;
    const float* const weights = row_of(topk_weights_, t, topk);
    std::copy_n(row_of(home, t, width), hidden, row_of(dx, t, hidden));
    const float mean = dot(weights, dweights, topk);
    for (int k = 0; k < topk; ++k) {
      const float gradient = weights[k] * (dweights[k] - mean);
      const int e = topk_idx_[at(t * topk + k)];
      logit_gradients_[at(t * topk + k)] = gradient;
      add_scaled(gradient, row_of(gate, e, hidden), hidden, row_of(dx, t, hidden));
    }
  }
}

// Adds [hidden] the gradient of the row's x, and in column hidden + k that of the choice's weight.
void MoeLayer::run_expert_backward(const Task& task, std::size_t number, float* out) {
  const int hidden = shape_.hidden;
  const int inner = shape_.inner;
  Expert& expert = experts[at(task.expert)];
  const float* const x = row_of(received_, task.row, hidden);
  const float* const dy = floats(handle_.received().row(task.row));
  const float* const z = before_silu_.data() + number * at(inner);
  std::fill(inner_gradients_.begin(), inner_gradients_.end(), 0.0F);
  for (int i = 0; i < inner; ++i) activated_[at(i)] = z[i] * sigmoid(z[i]);
  for (int h = 0; h < hidden; ++h) {
    add_scaled(dy[h], row_of(expert.w2, h, inner), inner, inner_gradients_.data());
    add_scaled(task.weight * dy[h], activated_.data(), inner, row_of(expert.dw2, h, inner));
  }
  // <dy, y> = <dy, w2 a> = <w2^T dy, a>: y itself need not be kept.
  out[hidden + task.k] += dot(inner_gradients_.data(), activated_.data(), inner);
  for (int i = 0; i < inner; ++i) {
    const float s = sigmoid(z[i]);
    const float gradient = task.weight * inner_gradients_[at(i)] * s * (1 + z[i] * (1 - s));
    add_scaled(gradient, x, hidden, row_of(expert.dw1, i, hidden));
    add_scaled(gradient, row_of(expert.w1, i, hidden), hidden, out);
  }
}
// [/backward]

void MoeLayer::add_gate_gradient(std::int64_t first, std::int64_t count,
                                 std::span<float> sum) const {
  const int hidden = shape_.hidden;
  for (std::int64_t t = first; t < first + count; ++t) {
    for (int k = 0; k < shape_.topk; ++k) {
      const std::size_t choice = at(t * shape_.topk + k);
      add_scaled(logit_gradients_[choice], row_of(x_, t, hidden), hidden,
                 row_of(sum, topk_idx_[choice], hidden));
    }
  }
}

}  // namespace train
