// Tokens and routing of the random cases.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/cases.hpp"
#include "support/numbers.hpp"

namespace ubep::test {
namespace {

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

// NaN, infinities, zeros of both signs, denormals, the largest number, any bits.
Bits special_bits(DType dtype, Random& random) {
  const float infinity = std::numeric_limits<float>::infinity();
  switch (random.below(8)) {
    case 0:
      return round_to(dtype, std::nanf(""));
    case 1:
      return round_to(dtype, infinity);
    case 2:
      return round_to(dtype, -infinity);
    case 3:
      return round_to(dtype, -0.0F);
    case 4:
      return round_to(dtype, 0.0F);
    case 5:
      return static_cast<Bits>(random.between(1, 99));  // denormal in every type
    case 6:
      return round_to(dtype, dtype == DType::fp16 ? 65504.0F : 3e38F);
    default:
      return static_cast<Bits>(random.next() >> (dtype == DType::fp32 ? 32 : 48));
  }
}

std::vector<std::byte> make_values(DType dtype, std::int64_t count, Random& random) {
  const int special_every = random.one_in(3) ? random.pick<int>({3, 40, 400}) : 0;
  std::vector<std::byte> values(index(count) * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const bool special = special_every != 0 && random.one_in(special_every);
    const Bits bits =
        special ? special_bits(dtype, random) : round_to(dtype, random.uniform() * 8 - 4);
    store_bits(dtype, bits, values.data() + index(i) * size_of(dtype));
  }
  return values;
}

float make_weight(bool chosen, Random& random) {
  if (random.one_in(16)) return random.pick<float>({0.0F, -0.0F, 1.0F, -0.5F, 1e-38F});
  // The weight of an entry that chooses nothing must not matter.
  if (!chosen && random.one_in(2)) return std::nanf("");
  return random.uniform();
}

struct RoutingStyle {
  int skip_every = 0;   // one entry in so many is -1, 0 = none
  bool repeat = false;  // one expert may be chosen twice by a token
  int hot = 0;          // so many experts get most choices, 0 = no preference
};

RoutingStyle make_style(Random& random) {
  RoutingStyle style;
  if (random.one_in(2)) style.skip_every = random.pick<int>({1, 2, 4, 10});
  if (style.skip_every == 1 && !random.one_in(4)) style.skip_every = 3;
  style.repeat = random.one_in(3);
  if (random.one_in(4)) style.hot = random.between(1, 3);
  return style;
}

std::int32_t choose_expert(const Problem& problem, const RoutingStyle& style, Random& random) {
  if (style.hot != 0 && !random.one_in(4)) {
    return random.below(std::min(style.hot, problem.num_experts));
  }
  return random.below(problem.num_experts);
}

std::vector<std::int32_t> choose_experts(const Problem& problem, const RoutingStyle& style,
                                         Random& random) {
  std::vector<std::int32_t> chosen;
  for (int k = 0; k < problem.topk; ++k) {
    std::int32_t id = choose_expert(problem, style, random);
    if (!style.repeat) {
      for (int i = 0; i < 8 && std::count(chosen.begin(), chosen.end(), id) != 0; ++i) {
        id = random.below(problem.num_experts);
      }
      if (std::count(chosen.begin(), chosen.end(), id) != 0) id = -1;
    }
    if (style.skip_every != 0 && random.one_in(style.skip_every)) id = -1;
    chosen.push_back(id);
  }
  return chosen;
}

RankInput make_input(const Problem& problem, std::int64_t tokens, Random& random) {
  RankInput input;
  input.tokens = tokens;
  input.x = make_values(problem.dtype, tokens * problem.hidden, random);
  const RoutingStyle style = make_style(random);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::vector<std::int32_t> chosen = choose_experts(problem, style, random);
    input.topk_idx.insert(input.topk_idx.end(), chosen.begin(), chosen.end());
  }
  return input;
}

}  // namespace

void fill_inputs(Problem& problem, int max_tokens, Random& random) {
  // The reference is scalar: keeps one operation to some hundred thousand products a rank.
  const std::int64_t row_cost =
      static_cast<std::int64_t>(problem.topk + problem.num_ranks()) * problem.hidden;
  const int limit = static_cast<int>(
      std::min<std::int64_t>(max_tokens, std::max<std::int64_t>(1, 150'000 / row_cost)));
  const bool nobody = random.one_in(12);
  for (RankInput& input : problem.ranks) {
    const bool nothing = nobody || random.one_in(6);
    const int tokens = nothing ? 0 : (random.one_in(4) ? limit : random.between(0, limit));
    input = make_input(problem, tokens, random);
    for (const std::int32_t id : input.topk_idx) {
      input.topk_weights.push_back(make_weight(id >= 0, random));
    }
  }
}

}  // namespace ubep::test
