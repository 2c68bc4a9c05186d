// A layer of experts that learns: forward and backward over dispatch and combine
// (docs/training.md).
//
//   MoeLayer layer(shape, comm.rank(), comm.size(), seed);
//   layer.forward(comm, x, y);        // y [tokens, hidden], without the residual
//   layer.backward(comm, dy, dx);     // gradients of x, of this rank's experts and of the gate
//   layer.add_gate_gradient(0, tokens, sum);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ubep/ubep.hpp"

namespace train {

struct MoeShape {
  int hidden = 32;
  int inner = 64;
  int experts = 8;
  int topk = 2;
  int max_tokens = 0;  // of one rank
  ubep::DispatchOptions dispatch = {.layout = ubep::Layout::expert_major};

  // What a communicator must have room for: rows of combine are gradients of tokens, and topk
  // columns behind them.
  ubep::CommunicatorOptions communicator(int ranks) const;
  // Experts lie in blocks, as the communicator has them when it isn't told otherwise.
  int first_expert(int rank, int ranks) const;
};

// y = w2 silu(w1 x), silu(z) = z / (1 + exp(-z)).
struct Expert {
  std::vector<float> w1;   // [inner, hidden]
  std::vector<float> w2;   // [hidden, inner]
  std::vector<float> dw1;  // gradients of the latest backward
  std::vector<float> dw2;
};

class MoeLayer {
 public:
  // An expert's weights depend on the seed and its global id.
  MoeLayer(const MoeShape& shape, int rank, int ranks, std::uint64_t seed);

  // x [tokens, hidden] must stay as it is until backward. Collective, as backward.
  void forward(ubep::Communicator& comm, std::span<const float> x, std::vector<float>& y);
  // dy [tokens, hidden], the gradient of the latest y.
  void backward(ubep::Communicator& comm, std::span<const float> dy, std::vector<float>& dx);
  // Adds what tokens first .. first + count - 1 contribute to the gradient of the gate.
  void add_gate_gradient(std::int64_t first, std::int64_t count, std::span<float> sum) const;

  std::vector<float> gate;      // [experts, hidden], the same on all ranks
  std::vector<Expert> experts;  // of this rank

 private:
  // What one expert does with one row: the choice k of its token.
  struct Task {
    std::int64_t row;
    std::int64_t output;  // row of the outputs
    int expert;
    int k;
    float weight;
  };

  void choose(std::int64_t tokens);
  void list_tasks();
  void list_tasks_of_shared_rows();
  void run_expert(const Task& task, std::size_t number, float* out);
  void run_expert_backward(const Task& task, std::size_t number, float* out);

  MoeShape shape_;
  ubep::Handle handle_;
  std::span<const float> x_;
  std::vector<std::int32_t> topk_idx_;  // [tokens, topk]
  std::vector<float> topk_weights_;     // [tokens, topk]
  std::vector<float> logit_gradients_;  // [tokens, topk]
  std::vector<Task> tasks_;
  std::vector<float> received_;         // [num_rows, hidden] x as it came
  std::vector<float> before_silu_;      // [tasks, inner]
  std::vector<float> activated_;        // [inner]
  std::vector<float> inner_gradients_;  // [inner]
};

}  // namespace train
