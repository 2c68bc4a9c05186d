#include "bench/rivals/floor.hpp"

#include <array>

#include "tools/ubep/stand_in.hpp"

namespace ubep::rivals {
namespace {

constexpr std::uint32_t kNone = ~0U;

}  // namespace

FloorWay::FloorWay(const Group& group, const Shape& shape, Layout layout, Store store)
    : shape_(shape),
      layout_(layout),
      store_(store),
      tokens_(shape.tokens[static_cast<std::size_t>(group.rank())]),
      topk_(static_cast<std::size_t>(shape.topk)),
      row_bytes_(shape.row_bytes()),
      x_(static_cast<std::size_t>(tokens_), row_bytes_),
      rows_(static_cast<std::size_t>(tokens_) * topk_, row_bytes_),
      outputs_(static_cast<std::size_t>(tokens_) * topk_, row_bytes_),
      sums_(static_cast<std::size_t>(tokens_) * topk_, row_bytes_) {
  for (std::size_t e = 0; e < shape.expert_rank.size(); ++e) {
    scale_.push_back(tools::expert_scale(static_cast<std::int32_t>(e)));
  }
}

void FloorWay::dispatch(const tools::RankRouting& routing) {
  routing_ = &routing;
  off_.assign(scale_.size() + 1, 0);
  for (std::int32_t e : routing.topk_idx) {
    if (e >= 0) ++off_[static_cast<std::size_t>(e) + 1];
  }
  for (std::size_t e = 0; e < scale_.size(); ++e) off_[e + 1] += off_[e];
  next_.assign(off_.begin(), off_.end() - 1);
  place_.assign(routing.topk_idx.size(), kNone);
  source_.resize(routing.topk_idx.size());
  layout_ == Layout::rank_major ? copy_tokens(routing) : copy_choices(routing);
  store_fence();
}

// One row per (token, k), in the order of the experts.
void FloorWay::copy_choices(const tools::RankRouting& routing) {
  for (std::size_t i = 0; i < routing.topk_idx.size(); ++i) {
    if (routing.topk_idx[i] < 0) continue;
    place_[i] = next_[static_cast<std::size_t>(routing.topk_idx[i])]++;
    source_[place_[i]] = place_[i];
    copy_with(store_, rows_.row(place_[i]), x_.row(i / topk_), row_bytes_);
  }
}

// One row per (token, rank).
void FloorWay::copy_tokens(const tools::RankRouting& routing) {
  const auto ranks = static_cast<std::size_t>(shape_.ranks());
  row_of_.assign(static_cast<std::size_t>(tokens_) * ranks, kNone);
  num_rows_ = 0;
  for (std::size_t i = 0; i < routing.topk_idx.size(); ++i) {
    if (routing.topk_idx[i] < 0) continue;
    const auto e = static_cast<std::size_t>(routing.topk_idx[i]);
    std::uint32_t& row =
        row_of_[i / topk_ * ranks + static_cast<std::size_t>(shape_.expert_rank[e])];
    if (row == kNone) {
      row = static_cast<std::uint32_t>(num_rows_++);
      copy_with(store_, rows_.row(row), x_.row(i / topk_), row_bytes_);
    }
    place_[i] = next_[e]++;
    source_[place_[i]] = row;
  }
}

void FloorWay::experts() {
  for (std::size_t e = 0; e < scale_.size(); ++e) {
    for (std::uint32_t i = off_[e]; i < off_[e + 1]; ++i) {
      run_expert(scale_[e], rows_.row(source_[i]), static_cast<std::size_t>(shape_.hidden),
                 outputs_.row(i));
    }
  }
}

void FloorWay::combine(const Rows& out) {
  const auto ranks = static_cast<std::size_t>(shape_.ranks());
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  std::array<const std::byte*, 64> rows;
  std::array<float, 64> weights;
  const auto gather = [&](std::size_t token, std::size_t rank) {
    std::size_t count = 0;
    for (std::size_t i = token * topk_; i < (token + 1) * topk_; ++i) {
      if (place_[i] == kNone) continue;
      const auto e = static_cast<std::size_t>(routing_->topk_idx[i]);
      if (rank < ranks && static_cast<std::size_t>(shape_.expert_rank[e]) != rank) continue;
      rows[count] = outputs_.row(place_[i]);
      weights[count++] = routing_->topk_weights[i];
    }
    return count;
  };
  for (std::size_t r = 0; layout_ == Layout::rank_major && r < ranks; ++r) {
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens_); ++t) {
      if (row_of_[t * ranks + r] == kNone) continue;
      const std::size_t count = gather(t, r);
      sum_rows_with(store_,
                    {.rows = {rows.data(), count}, .weights = weights.data(), .hidden = hidden},
                    sums_.row(row_of_[t * ranks + r]));
    }
  }
  store_fence();
  for (std::int64_t t = 0; t < out.num_rows; ++t) {
    const auto token = static_cast<std::size_t>(t);
    if (layout_ != Layout::rank_major) {
      const std::size_t count = gather(token, ranks);
      sum_rows({.rows = {rows.data(), count}, .weights = weights.data(), .hidden = hidden},
               out.row(t));
      continue;
    }
    std::size_t count = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::uint32_t row = row_of_[token * ranks + r];
      if (row != kNone) rows[count++] = sums_.row(row);
    }
    sum_rows({.rows = {rows.data(), count}, .hidden = hidden}, out.row(t));
  }
}

}  // namespace ubep::rivals
