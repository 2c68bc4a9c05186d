// Four ranks, each a process, send their tokens to the experts' owners and get the sums back.
#include <cstdio>
#include <vector>

#include "ubep/ubep.hpp"

int main() {
  // [hello]
  const auto body = [](const ubep::Bootstrap& bootstrap) {
    auto comm = ubep::Communicator::create(bootstrap, {.num_experts = 8,
                                                       .max_tokens = 3,
                                                       .max_hidden = 4,
                                                       .max_dtype = ubep::DType::fp32,
                                                       .max_topk = 2});

    // Three tokens of this rank; token t chose experts t and t + 4, each with weight 0.5.
    std::vector<float> x(3 * 4, static_cast<float>(comm.rank() + 1));
    std::vector<std::int32_t> topk_idx = {0, 4, 1, 5, 2, 6};
    std::vector<float> topk_weights(6, 0.5F);

    ubep::Handle handle;
    comm.dispatch({x.data(), 3, 4, ubep::DType::fp32}, {topk_idx, topk_weights, 2}, {}, handle)
        .or_throw();

    // The local experts: here each just weights the row. An expert reads row i, writes output i.
    const ubep::Received& received = handle.received();
    ubep::Rows output = handle.expert_output();
    for (std::int64_t i = 0; i < received.num_rows; ++i) {
      const auto* in = reinterpret_cast<const float*>(received.row(i));
      auto* out = reinterpret_cast<float*>(output.row(i));
      float weight = 0;
      for (int k = 0; k < received.topk; ++k) {
        weight += received.topk_weights[static_cast<std::size_t>(i * received.topk + k)];
      }
      for (int h = 0; h < 4; ++h) out[h] = weight * in[h];
    }

    std::vector<float> y(3 * 4);
    comm.combine(handle, {.out = {y.data(), 3, 4, ubep::DType::fp32}}).or_throw();
    std::printf("rank %d: sent %.0f, got %.0f back\n", comm.rank(), x[0], y[0]);
    return y == x ? 0 : 1;
  };
  // [/hello]
  for (int status : ubep::fork_ranks(4, body)) {
    if (status != 0) return status;
  }
  return 0;
}
