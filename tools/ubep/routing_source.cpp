#include "tools/ubep/routing_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "tools/ubep/input_error.hpp"
#include "tools/ubep/random.hpp"
#include "tools/ubep/safetensors.hpp"

namespace ubep::tools {
namespace {

constexpr double kMaxZipfExponent = 10;  // beyond, the last experts' weights vanish

// The purposes that have random streams of their own.
enum Stream : std::uint64_t { popularity_stream, choices_stream, weights_stream };

std::vector<std::int32_t> shuffled_experts(const RoutingOptions& options) {
  std::vector<std::int32_t> experts(static_cast<std::size_t>(options.experts));
  std::iota(experts.begin(), experts.end(), 0);
  Random random(options.seed, {popularity_stream});
  for (std::size_t left = experts.size(); left > 1; --left) {
    std::swap(experts[left - 1], experts[random.below(static_cast<std::uint32_t>(left))]);
  }
  return experts;
}

// Fills `out` with distinct members of `pool`, each as likely; reorders the pool.
void draw_distinct(std::span<std::int32_t> pool, std::span<std::int32_t> out, Random& random) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto left = static_cast<std::uint32_t>(pool.size() - i);
    std::swap(pool[i], pool[i + random.below(left)]);
    out[i] = pool[i];
  }
}

// Each generator has `draw`, which fills one token's row [K] with distinct experts.

class Uniform {
 public:
  explicit Uniform(const RoutingOptions& options) : pool_(shuffled_experts(options)) {}
  void draw(std::span<std::int32_t> row, Random& random) { draw_distinct(pool_, row, random); }

 private:
  std::vector<std::int32_t> pool_;
};

class Hot {
 public:
  Hot(const RoutingOptions& options, std::size_t num_hot)
      : pool_(shuffled_experts(options)), num_hot_(num_hot) {}

  // A fair coin per choice; counts that either side cannot hold are thrown again. That keeps the
  // mean at K / 2, because the counts allowed lie symmetrically about it.
  void draw(std::span<std::int32_t> row, Random& random) {
    const std::size_t num_cold = pool_.size() - num_hot_;
    const std::size_t most = std::min(num_hot_, num_cold);
    std::size_t hot_choices = 0;
    do {
      hot_choices = 0;
      for (std::size_t k = 0; k < row.size(); ++k) hot_choices += random.below(2);
    } while (hot_choices > most || row.size() - hot_choices > most);
    const std::span<std::int32_t> pool(pool_);
    draw_distinct(pool.first(num_hot_), row.first(hot_choices), random);
    draw_distinct(pool.last(num_cold), row.subspan(hot_choices), random);
  }

 private:
  std::vector<std::int32_t> pool_;  // the hot experts, then the others
  std::size_t num_hot_;
};

class Zipf {
 public:
  Zipf(const RoutingOptions& options, double exponent) : experts_(shuffled_experts(options)) {
    double sum = 0;
    for (std::size_t i = 0; i < experts_.size(); ++i) {
      weights_.push_back(std::pow(static_cast<double>(i + 1), -exponent));
      sum += weights_.back();
      sums_.push_back(sum);
    }
    taken_.resize(experts_.size());
  }

  void draw(std::span<std::int32_t> row, Random& random) {
    places_.clear();
    while (places_.size() < row.size()) {
      const std::size_t place = draw_place(random);
      taken_[place] = true;
      row[places_.size()] = experts_[place];
      places_.push_back(place);
    }
    for (const std::size_t place : places_) taken_[place] = false;
  }

 private:
  // A place not taken yet. Draws that hit a taken one are thrown again; where the taken ones hold
  // nearly all the weight, a walk over the rest ends that (same distribution, more work).
  std::size_t draw_place(Random& random) const {
    for (int attempt = 0; attempt < 16; ++attempt) {
      const double target = random.unit() * sums_.back();
      const auto found = std::upper_bound(sums_.begin(), sums_.end() - 1, target);
      const auto place = static_cast<std::size_t>(found - sums_.begin());
      if (!taken_[place]) return place;
    }
    double rest = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) rest += taken_[i] ? 0 : weights_[i];
    double target = random.unit() * rest;
    std::size_t last = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (taken_[i]) continue;
      last = i;
      if (target < weights_[i]) break;
      target -= weights_[i];
    }
    return last;
  }

  std::vector<std::int32_t> experts_;  // most popular first
  std::vector<double> weights_;
  std::vector<double> sums_;  // running sums of weights_
  std::vector<bool> taken_;
  std::vector<std::size_t> places_;  // those taken by the token at hand
};

template <class Generator>
void generate(Generator generator, const RoutingOptions& options, std::vector<RankRouting>& ranks) {
  const auto topk = static_cast<std::size_t>(options.topk);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    // A copy, so that a rank's routing does not depend on how many tokens the ranks before had.
    Generator own = generator;
    Random random(options.seed, {choices_stream, options.set, rank});
    const std::span<std::int32_t> all(ranks[rank].topk_idx);
    for (std::size_t at = 0; at < all.size(); at += topk) own.draw(all.subspan(at, topk), random);
  }
}

// Fills the ranks' indices, in order, from the first rows of `rows` [tokens, K].
template <class Int>
void copy_rows(std::span<const Int> rows, const RoutingOptions& options,
               std::vector<RankRouting>& ranks) {
  const auto topk = static_cast<std::size_t>(options.topk);
  std::size_t at = 0;
  for (RankRouting& rank : ranks) {
    for (std::int32_t& expert : rank.topk_idx) {
      const Int value = rows[at];
      if (value < -1 || value >= options.experts) {
        throw InputError(fmt::format("row {} of tensor {} has expert {}, not one of -1..{}",
                                     at / topk, options.tensor, value, options.experts - 1));
      }
      expert = static_cast<std::int32_t>(value);
      ++at;
    }
  }
}

template <class Int>
void read_rows(const SafetensorsFile& file, const RoutingOptions& options, std::size_t num_rows,
               std::vector<RankRouting>& ranks) {
  std::vector<Int> rows(num_rows * static_cast<std::size_t>(options.topk));
  file.read(options.tensor, 0, std::as_writable_bytes(std::span(rows)));
  copy_rows<Int>(rows, options, ranks);
}

void load(const std::string& path, const RoutingOptions& options, std::vector<RankRouting>& ranks) {
  const SafetensorsFile file(path);
  const TensorInfo& info = file.info(options.tensor);
  const std::size_t num_dims = info.shape.size();
  const bool good_dtype = info.dtype == FileDType::i32 || info.dtype == FileDType::i64;
  if (!good_dtype || (num_dims != 2 && num_dims != 3) || (num_dims == 3 && info.shape[0] == 0)) {
    throw InputError(
        fmt::format("{}: tensor {} is {} {}, not I32 or I64 [tokens, K] or [layers, tokens, K]",
                    path, options.tensor, dtype_name(info.dtype), info.shape));
  }
  if (info.shape.back() != static_cast<std::uint64_t>(options.topk)) {
    throw InputError(fmt::format("{}: {} has {} choices per token but --topk is {}", path,
                                 options.tensor, info.shape.back(), options.topk));
  }
  const std::uint64_t rows_there = info.shape[num_dims - 2];
  std::uint64_t rows_wanted = 0;
  for (const int tokens : options.num_tokens) rows_wanted += static_cast<std::uint64_t>(tokens);
  if (rows_wanted > rows_there) {
    throw InputError(fmt::format("{}: {} has {} rows but the ranks' tokens are {} together", path,
                                 options.tensor, rows_there, rows_wanted));
  }
  if (info.dtype == FileDType::i32) {
    read_rows<std::int32_t>(file, options, rows_wanted, ranks);
  } else {
    read_rows<std::int64_t>(file, options, rows_wanted, ranks);
  }
}

// Weights as a softmax gives them: positive, some much larger than others, of sum 1 per token.
void fill_weights(const RoutingOptions& options, std::vector<RankRouting>& ranks) {
  const auto topk = static_cast<std::size_t>(options.topk);
  std::vector<double> row(topk);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Random random(options.seed, {weights_stream, options.set, rank});
    RankRouting& routing = ranks[rank];
    routing.topk_weights.resize(routing.topk_idx.size());
    for (std::size_t at = 0; at < routing.topk_idx.size(); at += topk) {
      double sum = 0;
      for (std::size_t k = 0; k < topk; ++k) {
        const double root = 0.1 + random.unit();
        row[k] = routing.topk_idx[at + k] < 0 ? 0 : root * root;
        sum += row[k];
      }
      for (std::size_t k = 0; k < topk; ++k) {
        routing.topk_weights[at + k] = sum > 0 ? static_cast<float>(row[k] / sum) : 0.0F;
      }
    }
  }
}

void check_options(const RoutingOptions& options) {
  if (options.num_tokens.empty()) throw InputError("routing needs at least one rank");
  for (const int tokens : options.num_tokens) {
    if (tokens < 0) throw InputError(fmt::format("tokens must not be negative, not {}", tokens));
  }
  if (options.topk < 1 || options.topk > options.experts) {
    throw InputError(fmt::format("topk must be 1 to the number of experts ({}), not {}",
                                 options.experts, options.topk));
  }
}

// The number behind the colon of `spec`, of low..high.
template <class Number>
Number parse_number(std::string_view spec, std::string_view text, Number low, Number high) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(value >= low && value <= high)) {
    throw InputError(
        fmt::format("routing {}: needs a number from {} to {} behind the colon", spec, low, high));
  }
  return value;
}

}  // namespace

std::vector<RankRouting> make_routing(std::string_view spec, const RoutingOptions& options) {
  check_options(options);
  std::vector<RankRouting> ranks(options.num_tokens.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].topk_idx.resize(static_cast<std::size_t>(options.num_tokens[rank]) *
                                static_cast<std::size_t>(options.topk));
  }
  const std::size_t colon = spec.find(':');
  const std::string_view kind = spec.substr(0, colon);
  const std::string_view argument = colon == spec.npos ? "" : spec.substr(colon + 1);
  if (spec == "uniform") {
    generate(Uniform(options), options, ranks);
  } else if (kind == "zipf") {
    generate(Zipf(options, parse_number(spec, argument, 0.0, kMaxZipfExponent)), options, ranks);
  } else if (kind == "hot") {
    const int num_hot = parse_number(spec, argument, 1, options.experts);
    const int half = (options.topk + 1) / 2;
    if (num_hot < half || options.experts - num_hot < half) {
      throw InputError(fmt::format(
          "routing {}: half of the top-{} choices cannot be distinct among {} hot or {} other "
          "experts",
          spec, options.topk, num_hot, options.experts - num_hot));
    }
    generate(Hot(options, static_cast<std::size_t>(num_hot)), options, ranks);
  } else if (kind == "file" && !argument.empty()) {
    load(std::string(argument), options, ranks);
  } else {
    throw InputError(
        fmt::format("unknown routing {}; use uniform, zipf:S, hot:N or file:PATH", spec));
  }
  fill_weights(options, ranks);
  return ranks;
}

}  // namespace ubep::tools
