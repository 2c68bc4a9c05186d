// What somebody writes who has installed the library: two ranks, each sends one token to the
// other's expert and gets it back; a wrong option is an ubep::Error that can be caught.
#include <cstdio>
#include <string>
#include <vector>

#include <ubep/ubep.hpp>

namespace {

int exchange(const ubep::Bootstrap& bootstrap) {
  auto comm = ubep::Communicator::create(bootstrap, {.num_experts = 2,
                                                     .max_tokens = 1,
                                                     .max_hidden = 4,
                                                     .max_dtype = ubep::DType::fp32,
                                                     .max_topk = 1});
  const float mine = static_cast<float>(comm.rank() + 1);
  const float theirs = static_cast<float>(2 - comm.rank());
  const std::vector<float> x(4, mine);
  const std::vector<std::int32_t> expert = {1 - comm.rank()};
  const std::vector<float> weight = {1.0F};
  ubep::Handle handle;
  comm.dispatch({x.data(), 1, 4, ubep::DType::fp32}, {expert, weight, 1}, {}, handle).or_throw();

  const ubep::Received& received = handle.received();
  if (received.num_rows != 1) return 2;
  const auto* row = reinterpret_cast<const float*>(received.row(0));
  auto* out = reinterpret_cast<float*>(handle.expert_output().row(0));
  for (int h = 0; h < 4; ++h) {
    if (row[h] != theirs) return 3;
    out[h] = 10 * row[h];
  }
  std::vector<float> y(4);
  comm.combine(handle, {.out = {y.data(), 1, 4, ubep::DType::fp32}}).or_throw();
  return y == std::vector<float>(4, 10 * mine) ? 0 : 4;
}

bool error_is_caught() {
  try {
    ubep::Communicator::plan_memory({.num_experts = -1}, 0, 1);
  } catch (const ubep::Error& error) {
    return error.code() == ubep::ErrorCode::invalid_argument;
  }
  return false;
}

}  // namespace

int main() {
  if (ubep::build_facts().find(ubep::kVersion) == std::string::npos) return 5;
  if (!error_is_caught()) return 6;
  for (int status : ubep::fork_ranks(2, exchange)) {
    if (status != 0) return status;
  }
  std::puts("two ranks exchanged their tokens");
  return 0;
}
