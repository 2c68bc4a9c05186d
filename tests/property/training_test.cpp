// Gradients of examples/02_train_moe over the library, against finite differences of the same two
// layers in double precision on one thread: of tokens, experts and gates, for all layouts and
// paths.
//
// The plain network is perturbed rather than the distributed one: fp32 would leave three digits of
// a difference. That both compute the same is checked on their outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include "examples/02_train_moe/moe_layer.hpp"
#include "support/random.hpp"
#include "support/ranks.hpp"

namespace ubep::test {
namespace {

using train::Expert;
using train::MoeLayer;
using train::MoeShape;

constexpr int kLayers = 2;
constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-5;  // of 1 + |value|; fp32 with sums of some dozen terms

const struct {
  const char* name;
  Layout layout;
  Weighting weighting;
  bool topk1;
} kVariants[] = {{"rank_major", Layout::rank_major, Weighting::kernel, false},
                 {"rank_major_owner", Layout::rank_major, Weighting::owner, false},
                 {"topk1", Layout::rank_major, Weighting::kernel, true},
                 {"topk1_owner", Layout::rank_major, Weighting::owner, true},
                 {"expert_major", Layout::expert_major, Weighting::kernel, false},
                 {"expert_padded", Layout::expert_padded, Weighting::kernel, false}};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

using Numbers = std::vector<double>;

Numbers widen(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// All weights and tokens, by what a rank's layer calls them.
struct Network {
  MoeShape shape;
  struct Layer {
    Numbers gate;
    std::vector<Numbers> w1, w2;  // [experts]
  };
  std::vector<Layer> layers;
  Numbers x;       // [tokens, hidden] of all ranks
  Numbers target;  // the same

  std::int64_t tokens() const { return std::ssize(x) / shape.hidden; }
};

void add_expert(const Network& net, const Numbers& w1, const Numbers& w2, const double* x,
                double weight, double* y) {
  const int hidden = net.shape.hidden;
  const int inner = net.shape.inner;
  for (int i = 0; i < inner; ++i) {
    double z = 0;
    for (int h = 0; h < hidden; ++h) z += w1[at(i * hidden + h)] * x[h];
    const double activated = z / (1 + std::exp(-z));
    for (int h = 0; h < hidden; ++h) y[h] += weight * w2[at(h * inner + i)] * activated;
  }
}

// y = x + experts(x)
void run_layer(const Network& net, const Network::Layer& layer, const double* x, double* y) {
  const int hidden = net.shape.hidden;
  Numbers logits(at(net.shape.experts));
  for (std::size_t e = 0; e < logits.size(); ++e) {
    for (int h = 0; h < hidden; ++h) logits[e] += layer.gate[e * at(hidden) + at(h)] * x[h];
  }
  std::vector<std::size_t> order(logits.size());
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = e;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  order.resize(at(net.shape.topk));
  double sum = 0;
  for (const std::size_t e : order) sum += std::exp(logits[e]);
  std::copy_n(x, hidden, y);
  for (const std::size_t e : order) {
    add_expert(net, layer.w1[e], layer.w2[e], x, std::exp(logits[e]) / sum, y);
  }
}

Numbers outputs_of(const Network& net) {
  Numbers now = net.x;
  Numbers next(now.size());
  for (const Network::Layer& layer : net.layers) {
    for (std::int64_t t = 0; t < net.tokens(); ++t) {
      run_layer(net, layer, now.data() + t * net.shape.hidden, next.data() + t * net.shape.hidden);
    }
    now.swap(next);
  }
  return now;
}

double loss_of(const Network& net) {
  const Numbers out = outputs_of(net);
  double loss = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    loss += 0.5 * (out[i] - net.target[i]) * (out[i] - net.target[i]);
  }
  return loss;
}

// What the ranks found; each writes its own part.
struct Gradients {
  Numbers out, dx;                     // [tokens, hidden]
  std::vector<Network::Layer> layers;  // gate: the sum over ranks
};

struct TrainingCase {
  int ranks = 1;
  Path path = Path::pull;
  MoeShape shape;
  std::vector<int> tokens;  // [ranks]
  std::vector<float> x, target;
};

TrainingCase make_setup(int variant, Path path, int ranks) {
  TrainingCase s{.ranks = ranks, .path = path};
  s.shape = {.hidden = 6, .inner = 5, .experts = 7, .topk = ranks == 2 ? 3 : 2};
  s.shape.dispatch.path = path;
  s.shape.dispatch.layout = kVariants[at(variant)].layout;
  s.shape.dispatch.weighting = kVariants[at(variant)].weighting;
  s.shape.dispatch.topk1 = kVariants[at(variant)].topk1;
  const int uneven[] = {5, 0, 9, 2};
  for (int rank = 0; rank < ranks; ++rank) {
    s.tokens.push_back(uneven[rank]);
    s.shape.max_tokens = std::max(s.shape.max_tokens, uneven[rank]);
  }
  Random random(static_cast<std::uint64_t>(ranks), 20, 26);
  for (const int tokens : s.tokens) {
    for (int i = 0; i < tokens * s.shape.hidden; ++i) {
      s.x.push_back(2 * random.uniform() - 1);
      s.target.push_back(2 * random.uniform() - 1);
    }
  }
  return s;
}

Network make_network(const TrainingCase& s) {
  Network net{.shape = s.shape, .x = widen(s.x), .target = widen(s.target)};
  for (int i = 0; i < kLayers; ++i) {
    const MoeLayer all(s.shape, 0, 1, at(i) + 1);
    Network::Layer& layer = net.layers.emplace_back();
    layer.gate = widen(all.gate);
    for (const Expert& expert : all.experts) {
      layer.w1.push_back(widen(expert.w1));
      layer.w2.push_back(widen(expert.w2));
    }
  }
  return net;
}

// Forward and backward of one rank; its part of what was found. gates: [layers] of this rank alone.
void train_rank(const TrainingCase& s, const Bootstrap& bootstrap, Gradients& found,
                std::vector<std::vector<float>>& gates) {
  Communicator comm = Communicator::create(bootstrap, s.shape.communicator(s.ranks));
  std::size_t begin = 0;
  for (int q = 0; q < bootstrap.rank; ++q) begin += at(s.tokens[at(q)]) * at(s.shape.hidden);
  const std::int64_t tokens = s.tokens[at(bootstrap.rank)];
  const auto count = static_cast<std::ptrdiff_t>(tokens * s.shape.hidden);
  const auto first = s.x.begin() + static_cast<std::ptrdiff_t>(begin);
  std::vector<std::vector<float>> h(kLayers + 1);
  h[0].assign(first, first + count);
  std::vector<MoeLayer> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.emplace_back(s.shape, bootstrap.rank, s.ranks, at(i) + 1);
  }
  for (std::size_t i = 0; i < kLayers; ++i) {
    layers[i].forward(comm, h[i], h[i + 1]);
    for (std::size_t j = 0; j < h[i].size(); ++j) h[i + 1][j] += h[i][j];
  }
  std::vector<float> gradient = h[kLayers];
  for (std::size_t j = 0; j < gradient.size(); ++j) gradient[j] -= s.target[begin + j];
  std::vector<float> through;
  for (std::size_t i = kLayers; i-- > 0;) {
    layers[i].backward(comm, gradient, through);
    for (std::size_t j = 0; j < gradient.size(); ++j) gradient[j] += through[j];
    gates[i].assign(layers[i].gate.size(), 0.0F);
    layers[i].add_gate_gradient(0, tokens, gates[i]);
    auto id = at(s.shape.first_expert(bootstrap.rank, s.ranks));
    for (const Expert& expert : layers[i].experts) {
      found.layers[i].w1[id] = widen(expert.dw1);
      found.layers[i].w2[id++] = widen(expert.dw2);
    }
  }
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    found.out[begin + j] = static_cast<double>(h[kLayers][j]);
    found.dx[begin + j] = static_cast<double>(gradient[j]);
  }
}

Gradients train_once(const TrainingCase& s, const Network& net) {
  Gradients found{.out = Numbers(s.x.size(), NAN), .dx = Numbers(s.x.size(), NAN)};
  found.layers.resize(kLayers);
  for (Network::Layer& layer : found.layers) {
    layer.w1.resize(at(s.shape.experts));
    layer.w2.resize(at(s.shape.experts));
  }
  std::vector<std::vector<std::vector<float>>> gates(at(s.ranks));
  for (auto& of_rank : gates) of_rank.resize(kLayers);
  run_ranks(RankKind::threads, s.ranks, [&](const Bootstrap& bootstrap) {
    train_rank(s, bootstrap, found, gates[at(bootstrap.rank)]);
  });
  for (std::size_t i = 0; i < kLayers; ++i) {
    found.layers[i].gate.assign(net.layers[i].gate.size(), 0.0);
    for (const auto& of_rank : gates) {
      for (std::size_t j = 0; j < of_rank[i].size(); ++j) {
        found.layers[i].gate[j] += static_cast<double>(of_rank[i][j]);
      }
    }
  }
  return found;
}

// Every `stride`th derivative with respect to `weights`, which are a part of `net`.
void expect_derivatives(const char* what, Network& net, Numbers& weights, const Numbers& got,
                        std::size_t stride) {
  ASSERT_EQ(got.size(), weights.size()) << what;
  for (std::size_t i = 0; i < weights.size(); i += stride) {
    const double before = weights[i];
    weights[i] = before + kStep;
    const double above = loss_of(net);
    weights[i] = before - kStep;
    const double below = loss_of(net);
    weights[i] = before;
    const double want = (above - below) / (2 * kStep);
    EXPECT_NEAR(got[i], want, kTolerance * (1 + std::abs(want))) << what << "[" << i << "]";
  }
}

class TrainingTest : public testing::TestWithParam<std::tuple<int, Path, int>> {};

TEST_P(TrainingTest, GradientsAreFiniteDifferences) {
  const auto [variant, path, ranks] = GetParam();
  const TrainingCase setup = make_setup(variant, path, ranks);
  Network net = make_network(setup);
  const Gradients found = train_once(setup, net);
  const Numbers out = outputs_of(net);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(found.out[i], out[i], kTolerance);
  expect_derivatives("x", net, net.x, found.dx, 1);
  for (std::size_t i = 0; i < kLayers; ++i) {
    Network::Layer& layer = net.layers[i];
    expect_derivatives("gate", net, layer.gate, found.layers[i].gate, 1);
    for (std::size_t e = 0; e < layer.w1.size(); ++e) {
      expect_derivatives("w1", net, layer.w1[e], found.layers[i].w1[e], 3);
      expect_derivatives("w2", net, layer.w2[e], found.layers[i].w2[e], 3);
    }
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, Path, int>>& info) {
  const auto [variant, path, ranks] = info.param;
  return std::string(kVariants[at(variant)].name) + "_" + name(path) + "_" + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(Layers, TrainingTest,
                         testing::Combine(testing::Range(0, 6),
                                          testing::Values(Path::pull, Path::push),
                                          testing::Values(1, 2, 4)),
                         name_of);

constexpr std::int64_t kTokens = 5;
constexpr std::int64_t kWide = 9;
constexpr std::int64_t kOut = kWide + 2;

// Every choice gives its row back as it is, and two columns of nothing: their sums [tokens, kOut].
Status give_back(Communicator& comm, Handle& handle, Weighting weighting, float* home) {
  const Received& received = handle.received();
  const std::int64_t outputs = handle.expert_output().num_rows;
  std::vector<float> y(at(outputs * kOut));
  const auto add = [&](std::int64_t row, std::int64_t output) {
    const auto* const from = reinterpret_cast<const float*>(received.row(row));
    for (std::int64_t h = 0; h < kWide; ++h) y[at(output * kOut + h)] += from[h];
  };
  if (is_by_expert(received.layout)) {
    const auto choices = handle.row_choices();
    for (std::int64_t row = 0; row < outputs; ++row) {
      if (choices[at(row)] >= 0) add(row, row);
    }
  }
  for (std::int64_t i = 0; i < std::ssize(received.expert_rows); ++i) {
    const std::int64_t row = received.expert_rows[at(i)];
    add(row, weighting == Weighting::owner ? i : row);
  }
  return comm.combine(handle, {.out = {home, kTokens, kOut, DType::fp32},
                               .y = {y.data(), outputs, kOut, DType::fp32},
                               .unweighted = true});
}

// Tokens in bf16, their gradients in fp32 and wider: a cached dispatch takes rows of another type.
TEST(TrainingTypesTest, GradientsAreOfAnotherTypeThanTokens) {
  const std::vector<std::uint16_t> x(at(kTokens * 6), 0x3f80);
  const std::vector<std::int32_t> ids = {0, 1, 1, 3, 2, 0, 3, 0, 0, 2};
  const std::vector<float> weights(ids.size(), 0.25F);
  std::vector<float> g(at(kTokens * kWide));
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i) + 0.123456F;
  for (const auto& variant : kVariants) {
    run_ranks(RankKind::threads, 2, [&](const Bootstrap& bootstrap) {
      Communicator comm = Communicator::create(bootstrap, {.num_experts = 4,
                                                           .max_tokens = kTokens,
                                                           .max_hidden = kOut,
                                                           .max_dtype = DType::fp32,
                                                           .max_topk = 2,
                                                           .expert_capacity = 4 * kTokens});
      Handle handle;
      const DispatchOptions options{
          .layout = variant.layout, .weighting = variant.weighting, .topk1 = variant.topk1};
      const ConstRows tokens{x.data(), kTokens, 6, DType::bf16};
      ASSERT_TRUE(comm.dispatch(tokens, {ids, weights, 2}, options, handle).ok());
      comm.release(handle);

      ASSERT_TRUE(comm.dispatch({g.data(), kTokens, kWide, DType::fp32}, handle, handle).ok());
      EXPECT_EQ(handle.received().dtype, DType::fp32);
      EXPECT_EQ(handle.received().hidden, kWide);
      std::vector<float> home(at(kTokens * kOut), -1.0F);
      ASSERT_TRUE(give_back(comm, handle, variant.weighting, home.data()).ok());
      for (std::size_t i = 0; i < home.size(); ++i) {
        const std::size_t column = i % kOut;
        const float want = column < kWide ? 2 * g[i / kOut * kWide + column] : 0;
        ASSERT_EQ(home[i], want) << variant.name << ", column " << column;
      }
    });
  }
}

}  // namespace
}  // namespace ubep::test
