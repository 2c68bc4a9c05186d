#include "tools/ubep/stand_in.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace ubep::tools {
namespace {

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (bits >> 10U) & 31U;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | mantissa << 13U);
  if (exponent == 0) {
    const float tiny = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -tiny : tiny;
  }
  return std::bit_cast<float>(sign | (exponent + 112U) << 23U | mantissa << 13U);
}

std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  if (std::isnan(value)) return sign | 0x7E00U;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0F) return sign | 0x7C00U;
  if (magnitude < 0x1p-14F) {  // subnormal: a whole number of 2^-24
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, 24))));
  }
  const std::uint32_t rounded = (bits & 0x7FFFFFFFU) + 0xFFFU + ((bits >> 13U) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23U)) >> 13U));
}

struct Bf16 {
  using Element = std::uint16_t;
  static float load(Element bits) { return from_bf16(bits); }
  static Element store(float value) { return to_bf16(value); }
};
struct Fp16 {
  using Element = std::uint16_t;
  static float load(Element bits) { return from_fp16(bits); }
  static Element store(float value) { return to_fp16(value); }
};
struct Fp32 {
  using Element = float;
  static float load(Element value) { return value; }
  static Element store(float value) { return value; }
};

// One output row from one input row: the sum of `count` scaled terms, weighted.
struct Terms {
  const float* scale;
  const float* weight;
  std::size_t count;
};

template <class T>
[[gnu::always_inline]] inline void row_body(const std::byte* in, const Terms& terms,
                                            std::int64_t hidden, std::byte* out) {
  const auto* from = reinterpret_cast<const typename T::Element*>(in);
  auto* to = reinterpret_cast<typename T::Element*>(out);
  constexpr std::int64_t kBlock = 64;
  for (std::int64_t begin = 0; begin < hidden; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, hidden - begin);
    float x[kBlock];
    float sum[kBlock] = {};
    for (std::int64_t i = 0; i < n; ++i) x[i] = T::load(from[begin + i]);
    for (std::size_t k = 0; k < terms.count; ++k) {
      for (std::int64_t i = 0; i < n; ++i) sum[i] += terms.weight[k] * (terms.scale[k] * x[i]);
    }
    for (std::int64_t i = 0; i < n; ++i) to[begin + i] = T::store(sum[i]);
  }
}

template <class T>
void row_default(const std::byte* in, const Terms& terms, std::int64_t hidden, std::byte* out) {
  row_body<T>(in, terms, hidden, out);
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx2")]] void row_avx2(const std::byte* in, const Terms& terms, std::int64_t hidden,
                                      std::byte* out) {
  row_body<T>(in, terms, hidden, out);
}
#endif

using RowKernel = void (*)(const std::byte*, const Terms&, std::int64_t, std::byte*);

template <class T>
RowKernel kernel_of() {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) return row_avx2<T>;
#endif
  return row_default<T>;
}

RowKernel kernel_for(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return kernel_of<Fp16>();
    case DType::fp32:
      return kernel_of<Fp32>();
    default:
      return kernel_of<Bf16>();
  }
}

// The element (origin, token, i) as a number of 64ths.
int activation(const Origin& origin, std::int64_t token, std::int64_t i) {
  auto mix = static_cast<std::uint32_t>(origin.rank * 7919 + origin.set * 104729 + token * 1299709);
  mix = (mix ^ (mix >> 13U)) * 2654435761U + static_cast<std::uint32_t>(i) * 40503U;
  return static_cast<int>((mix >> 16U) & 0xFFU) - 128;
}

}  // namespace

float load_element(const std::byte* row, std::int64_t i, DType dtype) {
  if (dtype == DType::fp32) return reinterpret_cast<const float*>(row)[i];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[i];
  return dtype == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
}

void store_element(std::byte* row, std::int64_t i, DType dtype, float value) {
  if (dtype == DType::fp32) {
    reinterpret_cast<float*>(row)[i] = value;
  } else {
    reinterpret_cast<std::uint16_t*>(row)[i] =
        dtype == DType::bf16 ? to_bf16(value) : to_fp16(value);
  }
}

void make_activations(const Origin& origin, std::int64_t first_token, const Rows& x) {
  for (std::int64_t t = 0; t < x.num_rows; ++t) {
    for (std::int64_t i = 0; i < x.hidden; ++i) {
      const float value = static_cast<float>(activation(origin, first_token + t, i)) / 64;
      store_element(x.row(t), i, x.dtype, value);
    }
  }
}

float expert_scale(std::int32_t expert) { return std::ldexp(1.0F, -static_cast<int>(expert % 4)); }

void run_experts(const Received& received, std::span<const std::int32_t> experts,
                 const Rows& output) {
  const RowKernel kernel = kernel_for(received.dtype);
  std::vector<std::byte> scratch;  // a quantised row as what the kernel reads
  const auto row_of = [&](std::int64_t i) {
    if (received.quant == Quant::none) return received.row(i);
    scratch.resize(static_cast<std::size_t>(received.hidden) * size_of(received.dtype));
    dequantize_row(received.quant, received.row(i), received.dtype, received.hidden,
                   scratch.data());
    return static_cast<const std::byte*>(scratch.data());
  };
  std::vector<float> scale(static_cast<std::size_t>(received.topk));
  std::vector<float> weight(scale.size());
  if (is_by_expert(received.layout)) {
    weight[0] = 1;
    for (std::size_t e = 0; e < experts.size(); ++e) {
      scale[0] = expert_scale(experts[e]);
      for (std::int64_t i = 0; i < received.expert_counts[e]; ++i) {
        const std::int64_t row = received.expert_offsets[e] + i;
        kernel(row_of(row), {scale.data(), weight.data(), 1}, received.hidden, output.row(row));
      }
    }
    return;
  }
  for (std::int64_t row = 0; row < received.num_rows; ++row) {
    std::size_t count = 0;
    for (std::int64_t k = 0; k < received.topk; ++k) {
      const auto cell = static_cast<std::size_t>(row * received.topk + k);
      if (received.topk_idx[cell] < 0) continue;
      scale[count] = expert_scale(experts[static_cast<std::size_t>(received.topk_idx[cell])]);
      weight[count++] = received.topk_weights[cell];
    }
    kernel(row_of(row), {scale.data(), weight.data(), count}, received.hidden, output.row(row));
  }
}

namespace {

float round_to(DType dtype, float value) {
  std::byte row[sizeof(float)];
  store_element(row, 0, dtype, value);
  return load_element(row, 0, dtype);
}

// Owners' rows, and sums of hosts, are rounded to the dtype. A host is a run of ranks.
float sum_of_ranks(std::span<const float> partials, std::span<const int> host_of, DType dtype) {
  float total = 0;
  float host = 0;
  for (std::size_t r = 0; r < partials.size(); ++r) {
    const float row = round_to(dtype, partials[r]);
    if (host_of.empty()) {
      total += row;
      continue;
    }
    host += row;
    if (r + 1 < partials.size() && host_of[r + 1] == host_of[r]) continue;
    total += round_to(dtype, host);
    host = 0;
  }
  return total;
}

}  // namespace

void expected_token(const TokenChoice& choice, const ConstRows& x, std::int64_t token,
                    std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float value = load_element(x.row(token), static_cast<std::int64_t>(i), x.dtype);
    std::array<float, 64> per_rank = {};
    float in_order = 0;
    for (std::size_t k = 0; k < choice.topk_idx.size(); ++k) {
      const std::int32_t e = choice.topk_idx[k];
      if (e < 0) continue;
      const float term = choice.topk_weights[k] * (expert_scale(e) * value);
      in_order += term;
      const auto rank = choice.expert_rank[static_cast<std::size_t>(e)];
      per_rank[static_cast<std::size_t>(rank)] += term;
    }
    out[i] = in_order;
    if (is_by_expert(choice.layout)) continue;
    const auto ranks = static_cast<std::size_t>(choice.ranks);
    out[i] = sum_of_ranks(std::span(per_rank).first(ranks), choice.host_of, x.dtype);
  }
}

}  // namespace ubep::tools
