#include "bench/rivals/gather.hpp"

#include <array>
#include <cstring>

namespace ubep::rivals {

GatherWay::GatherWay(Group& group, const Shape& shape, GatherStores stores, bool all_reduce)
    : shape_(shape),
      stores_(stores),
      all_reduce_(all_reduce),
      rank_(group.rank()),
      ranks_(group.size()),
      gathered_(group),
      reduced_(group),
      x_(static_cast<std::size_t>(shape.max_tokens()), shape.row_bytes()),
      all_(static_cast<std::size_t>(shape.total_tokens()), shape.row_bytes()),
      scratch_(
          static_cast<std::size_t>(shape.total_tokens()) * static_cast<std::size_t>(shape.topk),
          shape.row_bytes()),
      sums_(static_cast<std::size_t>(shape.total_tokens()), shape.row_bytes()),
      local_(shape, rank_) {
  std::size_t first = 0;
  for (int t : shape.tokens) {
    first_.push_back(first);
    first += static_cast<std::size_t>(t);
  }
  const auto most = static_cast<std::size_t>(shape.max_tokens());
  const std::size_t choices = most * static_cast<std::size_t>(shape.topk) * 4;
  for (int i = 0; i < 2 * ranks_; ++i) {
    Buffer buffer;
    buffer.x = group.allocate(most * shape.row_bytes());
    buffer.topk_idx = group.allocate(choices);
    buffer.topk_weights = group.allocate(choices);
    buffer.sums = group.allocate(first * shape.row_bytes());
    buffers_.push_back(buffer);
  }
}

// In place it is the half of the next layer.
Rows GatherWay::input() {
  if (stores_ != GatherStores::in_place) return x_.view(tokens(rank_));
  const Buffer& next = buffers_[(epoch_ + 1) % 2 * static_cast<std::size_t>(ranks_) +
                                static_cast<std::size_t>(rank_)];
  return {next.x, tokens(rank_), shape_.hidden, DType::bf16, 0};
}

void GatherWay::dispatch(const tools::RankRouting& routing) {
  ++epoch_;
  const Buffer& mine = of(rank_);
  const std::size_t bytes = shape_.row_bytes();
  const bool copies = stores_ != GatherStores::in_place;
  for (int t = 0; copies && t < tokens(rank_); ++t) {
    const std::size_t at = static_cast<std::size_t>(t);
    copy_with(plain_stores() ? Store::near : Store::far, mine.x + at * bytes, x_.row(at), bytes);
  }
  if (!routing.topk_idx.empty()) {
    std::memcpy(mine.topk_idx, routing.topk_idx.data(), routing.topk_idx.size() * 4);
    std::memcpy(mine.topk_weights, routing.topk_weights.data(), routing.topk_weights.size() * 4);
  }
  store_fence();
  // publishes: my rows and routing, to the loop below on every rank.
  gathered_.set_for_all(rank_, epoch_);
  local_.clear();
  for (int q = 0; q < ranks_; ++q) add_rows(q, routing);
  local_.group();
}

// In rank order, so that sums have one order on all ranks.
void GatherWay::add_rows(int source, const tools::RankRouting& routing) {
  const auto topk = static_cast<std::size_t>(shape_.topk);
  const std::size_t bytes = shape_.row_bytes();
  if (source == rank_) {
    const bool written_there = stores_ == GatherStores::in_place;
    for (int t = 0; t < tokens(source); ++t) {
      const auto at = static_cast<std::size_t>(t);
      local_.add(written_there ? of(rank_).x + at * bytes : x_.row(at),
                 routing.topk_idx.data() + at * topk, routing.topk_weights.data() + at * topk);
    }
    return;
  }
  // acquires: that rank's rows and routing.
  gathered_.wait(source, rank_, epoch_);
  const Buffer& theirs = of(source);
  const auto* idx = reinterpret_cast<const std::int32_t*>(theirs.topk_idx);
  const auto* weights = reinterpret_cast<const float*>(theirs.topk_weights);
  for (int t = 0; t < tokens(source); ++t) {
    const auto at = static_cast<std::size_t>(t);
    std::byte* const there = theirs.x + at * bytes;
    std::byte* const gathered = all_.row(first_token(source) + at);
    if (!reads_in_place()) copy_plain(gathered, there, bytes);
    local_.add(reads_in_place() ? there : gathered, idx + at * topk, weights + at * topk);
  }
}

// My experts' share of the sums of a rank's tokens.
void GatherWay::write_sums(int source) {
  const std::size_t bytes = shape_.row_bytes();
  const bool stays = source == rank_ && !all_reduce_;
  for (int t = 0; t < tokens(source); ++t) {
    const std::size_t row = first_token(source) + static_cast<std::size_t>(t);
    std::byte* shared = of(rank_).sums + row * bytes;
    if (stays) {
      local_.sum(Store::near, row, scratch_, sums_.row(row));
    } else if (stores_ == GatherStores::streamed) {
      local_.sum(Store::near, row, scratch_, sums_.row(row));
      copy_streaming(shared, sums_.row(row), bytes);
    } else {
      local_.sum(plain_stores() ? Store::near : Store::far, row, scratch_, shared);
    }
  }
}

// The shares of all ranks for one rank's tokens.
void GatherWay::add_up(int source, std::byte* out, std::size_t stride) const {
  const std::size_t bytes = shape_.row_bytes();
  std::array<const std::byte*, tools::kMaxStageRanks> shares;
  for (int t = 0; t < tokens(source); ++t) {
    const std::size_t row = first_token(source) + static_cast<std::size_t>(t);
    for (int q = 0; q < ranks_; ++q) {
      const bool stays = q == rank_ && !all_reduce_;
      shares[static_cast<std::size_t>(q)] = stays ? sums_.row(row) : of(q).sums + row * bytes;
    }
    sum_rows({.rows = {shares.data(), static_cast<std::size_t>(ranks_)},
              .hidden = static_cast<std::size_t>(shape_.hidden),
              .dtype = DType::bf16},
             out + static_cast<std::size_t>(t) * stride);
  }
}

void GatherWay::combine(const Rows& out) {
  for (int q = 0; q < ranks_; ++q) write_sums(q);
  store_fence();
  // publishes: my shares of all tokens, to every rank.
  reduced_.set_for_all(rank_, epoch_);
  // acquires: the shares of all ranks.
  for (int q = 0; q < ranks_; ++q) reduced_.wait(q, rank_, epoch_);
  if (!all_reduce_) {
    add_up(rank_, out.row(0), static_cast<std::size_t>(out.stride()));
    return;
  }
  for (int q = 0; q < ranks_; ++q) add_up(q, all_.row(first_token(q)), shape_.row_bytes());
  for (std::int64_t t = 0; t < out.num_rows; ++t) {
    copy_plain(out.row(t), all_.row(first_token(rank_) + static_cast<std::size_t>(t)),
               shape_.row_bytes());
  }
}

}  // namespace ubep::rivals
