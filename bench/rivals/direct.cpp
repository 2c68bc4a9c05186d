#include "bench/rivals/direct.hpp"

#include <algorithm>
#include <array>

#include "tools/ubep/stand_in.hpp"

namespace ubep::rivals {
namespace {

std::size_t most_local_experts(const Shape& shape) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(shape.ranks()));
  for (std::int32_t r : shape.expert_rank) ++counts[static_cast<std::size_t>(r)];
  return *std::max_element(counts.begin(), counts.end());
}

std::size_t window_rows(const Shape& shape) {
  return most_local_experts(shape) * static_cast<std::size_t>(shape.ranks()) *
         static_cast<std::size_t>(shape.max_tokens());
}

std::size_t lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t counts_bytes(const Shape& shape) { return lines(most_local_experts(shape) * 4); }
std::size_t entries_bytes(const Shape& shape) {
  return lines(
      static_cast<std::size_t>(shape.max_tokens()) * static_cast<std::size_t>(shape.topk) * 8 + 4);
}

std::size_t bytes_of_half(const Shape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.ranks());
  const std::size_t rows = 2 * window_rows(shape) + static_cast<std::size_t>(shape.max_tokens());
  const std::size_t bytes =
      rows * shape.row_bytes() + ranks * (counts_bytes(shape) + entries_bytes(shape));
  return (bytes + 4095) / 4096 * 4096;
}

std::vector<std::byte*> allocate_areas(Group& group, const Shape& shape) {
  std::vector<std::byte*> areas;
  for (int r = 0; r < group.size(); ++r) areas.push_back(group.allocate(2 * bytes_of_half(shape)));
  return areas;
}

}  // namespace

std::size_t DirectWay::area_bytes(const Shape& shape) { return 2 * bytes_of_half(shape); }

DirectWay::DirectWay(Group& group, const Shape& shape, const DirectChoice& choice)
    : DirectWay(group, shape, choice, allocate_areas(group, shape)) {}

DirectWay::DirectWay(Group& group, const Shape& shape, const DirectChoice& choice,
                     std::vector<std::byte*> areas)
    : shape_(shape),
      choice_(choice),
      rank_(group.rank()),
      ranks_(group.size()),
      most_(static_cast<std::size_t>(shape.max_tokens())),
      row_bytes_(shape.row_bytes()),
      local_experts_(most_local_experts(shape)),
      window_rows_(window_rows(shape)),
      half_bytes_(bytes_of_half(shape)),
      counts_bytes_(counts_bytes(shape)),
      entries_bytes_(entries_bytes(shape)),
      areas_(std::move(areas)),
      flags_(group),
      x_(most_, row_bytes_),
      pulled_(choice.pull ? window_rows_ : 1, row_bytes_),
      outputs_(choice.streamed_outputs ? window_rows_ : 1, row_bytes_),
      local_(shape.expert_rank.size()),
      next_(static_cast<std::size_t>(ranks_) * local_experts_),
      choices_(most_ * static_cast<std::size_t>(shape.topk)) {
  std::vector<std::uint32_t> seen(static_cast<std::size_t>(ranks_));
  for (std::size_t e = 0; e < local_.size(); ++e) {
    const std::int32_t owner = shape.expert_rank[e];
    local_[e] = seen[static_cast<std::size_t>(owner)]++;
    if (owner == rank_) scale_.push_back(tools::expert_scale(static_cast<std::int32_t>(e)));
  }
}

std::uint32_t* DirectWay::counts(int owner, int source) const {
  std::byte* first = token(owner, most_) + static_cast<std::size_t>(source) * counts_bytes_;
  return reinterpret_cast<std::uint32_t*>(first);
}

DirectWay::Entry* DirectWay::entries(int owner, int source) const {
  std::byte* first = token(owner, most_) + static_cast<std::size_t>(ranks_) * counts_bytes_ +
                     static_cast<std::size_t>(source) * entries_bytes_;
  return reinterpret_cast<Entry*>(first);
}

// Pulled activations are written where the owners read them, in the half of the next layer.
Rows DirectWay::input() {
  const int tokens = shape_.tokens[static_cast<std::size_t>(rank_)];
  if (!choice_.pull || choice_.rows == Store::far) return x_.view(tokens);
  std::byte* next = areas_[static_cast<std::size_t>(rank_)] + (epoch_ + 1) % 2 * half_bytes_ +
                    2 * window_rows_ * row_bytes_;
  return {next, tokens, shape_.hidden, DType::bf16, 0};
}

// Owner, expert and place of every choice.
void DirectWay::place(const tools::RankRouting& routing) {
  std::fill(next_.begin(), next_.end(), 0U);
  for (std::size_t i = 0; i < routing.topk_idx.size(); ++i) {
    Choice& choice = choices_[i];
    choice.owner = -1;
    if (routing.topk_idx[i] < 0) continue;
    const auto e = static_cast<std::size_t>(routing.topk_idx[i]);
    choice.owner = shape_.expert_rank[e];
    choice.expert = local_[e];
    choice.slot = next_[static_cast<std::size_t>(choice.owner) * local_experts_ + choice.expert]++;
  }
}

void DirectWay::store_rows(const tools::RankRouting& routing) {
  const auto topk = static_cast<std::size_t>(shape_.topk);
  for (std::size_t i = 0; i < routing.topk_idx.size(); ++i) {
    const Choice& choice = choices_[i];
    if (choice.owner < 0) continue;
    std::byte* to = row(choice.owner, slot_index(choice.expert, rank_, choice.slot));
    copy_with(choice.owner == rank_ ? Store::near : choice_.rows, to, x_.row(i / topk), row_bytes_);
  }
  for (int owner = 0; owner < ranks_; ++owner) {
    const std::uint32_t* first = next_.data() + static_cast<std::size_t>(owner) * local_experts_;
    std::copy(first, first + local_experts_, counts(owner, rank_));
  }
}

void DirectWay::pull_rows() {
  for (int q = 0; q < ranks_; ++q) {
    const Entry* list = entries(rank_, q);
    std::uint32_t* seen = next_.data() + static_cast<std::size_t>(q) * local_experts_;
    std::fill(seen, seen + local_experts_, 0U);
    const std::uint32_t count = list[0].expert;
    for (std::uint32_t i = 1; i <= count; ++i) {
      const std::byte* from = q == rank_ && choice_.rows == Store::far ? x_.row(list[i].token)
                                                                       : token(q, list[i].token);
      copy_plain(pulled_.row(slot_index(list[i].expert, q, seen[list[i].expert]++)), from,
                 row_bytes_);
    }
    std::copy(seen, seen + local_experts_, counts(rank_, q));
  }
}

void DirectWay::dispatch(const tools::RankRouting& routing) {
  ++epoch_;
  routing_ = &routing;
  place(routing);
  if (!choice_.pull) {
    store_rows(routing);
    meet();
    return;
  }
  const auto topk = static_cast<std::size_t>(shape_.topk);
  if (choice_.rows == Store::far) {
    for (std::size_t t = 0; t * topk < routing.topk_idx.size(); ++t) {
      copy_streaming(token(rank_, t), x_.row(t), row_bytes_);
    }
  }
  std::array<std::uint32_t, tools::kMaxStageRanks> sent = {};
  for (std::size_t i = 0; i < routing.topk_idx.size(); ++i) {
    const Choice& choice = choices_[i];
    if (choice.owner < 0) continue;
    entries(choice.owner, rank_)[++sent[static_cast<std::size_t>(choice.owner)]] = {
        choice.expert, static_cast<std::uint32_t>(i / topk)};
  }
  for (int owner = 0; owner < ranks_; ++owner) {
    entries(owner, rank_)[0].expert = sent[static_cast<std::size_t>(owner)];
  }
  meet();
  pull_rows();
}

void DirectWay::experts() {
  std::array<const std::uint32_t*, tools::kMaxStageRanks> rows_of;
  for (int q = 0; q < ranks_; ++q) rows_of[static_cast<std::size_t>(q)] = counts(rank_, q);
  for (std::size_t e = 0; e < scale_.size(); ++e) {
    for (int q = 0; q < ranks_; ++q) {
      const std::uint32_t count = rows_of[static_cast<std::size_t>(q)][e];
      for (std::uint32_t s = 0; s < count; ++s) {
        const std::size_t index = slot_index(e, q, s);
        run_expert(scale_[e], choice_.pull ? pulled_.row(index) : row(rank_, index),
                   static_cast<std::size_t>(shape_.hidden),
                   choice_.streamed_outputs ? outputs_.row(index) : output(rank_, index));
      }
    }
  }
}

void DirectWay::combine(const Rows& out) {
  for (std::size_t e = 0; choice_.streamed_outputs && e < scale_.size(); ++e) {
    for (int q = 0; q < ranks_; ++q) {
      const std::uint32_t count = q == rank_ ? 0 : counts(rank_, q)[e];
      for (std::uint32_t s = 0; s < count; ++s) {
        const std::size_t index = slot_index(e, q, s);
        copy_streaming(output(rank_, index), outputs_.row(index), row_bytes_);
      }
    }
  }
  meet();
  const auto topk = static_cast<std::size_t>(shape_.topk);
  for (std::int64_t t = 0; t < out.num_rows; ++t) {
    std::array<const std::byte*, 64> rows;
    std::array<float, 64> weights;
    std::size_t count = 0;
    for (std::size_t i = static_cast<std::size_t>(t) * topk;
         i < (static_cast<std::size_t>(t) + 1) * topk; ++i) {
      const Choice& choice = choices_[i];
      if (choice.owner < 0) continue;
      const std::size_t index = slot_index(choice.expert, rank_, choice.slot);
      const bool kept = choice.owner == rank_ && choice_.streamed_outputs;
      rows[count] = kept ? outputs_.row(index) : output(choice.owner, index);
      weights[count++] = routing_->topk_weights[i];
    }
    sum_rows({.rows = {rows.data(), count},
              .weights = weights.data(),
              .hidden = static_cast<std::size_t>(shape_.hidden),
              .dtype = DType::bf16},
             out.row(t));
  }
}

void DirectWay::meet() {
  ++meetings_;
  store_fence();
  // publishes: my rows, lists and outputs, to the wait below on every rank.
  flags_.set_for_all(rank_, meetings_);
  // acquires: those of every rank.
  for (int q = 0; q < ranks_; ++q) flags_.wait(q, rank_, meetings_);
}

}  // namespace ubep::rivals
