#include "bench/rivals/collectives.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "tools/ubep/stand_in.hpp"

namespace ubep::rivals {
namespace {

// Rows sorted by owner and expert, moved by one all-to-all each way. Experts work on one segment
// per source: no regrouping.
class ExchangeWay final : public Way {
 public:
  ExchangeWay(const Group& group, const Shape& shape, std::shared_ptr<Collectives> collectives);

  Rows input() override { return x_.view(tokens_); }
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override;
  void combine(const Rows& out) override;

 private:
  void pack(const tools::RankRouting& routing);
  void exchange_counts();

  std::shared_ptr<Collectives> collectives_;
  int tokens_;
  std::size_t ranks_;
  std::size_t topk_;
  std::size_t hidden_;
  std::size_t row_bytes_;
  Matrix x_;
  Matrix send_;                             // [choices] by owner, expert
  Matrix receive_;                          // by source, expert
  Matrix outputs_;                          // as receive_
  Matrix returned_;                         // as send_
  std::vector<float> scale_;                // of local experts
  std::vector<std::size_t> first_expert_;   // [ranks + 1] experts are in blocks
  std::vector<std::uint32_t> sent_;         // [E] my rows for each expert
  std::vector<std::uint32_t> received_;     // [ranks][Le]
  std::vector<std::size_t> sent_counts_;    // [ranks] bytes of sent_
  std::vector<std::size_t> their_counts_;   // [ranks] bytes of received_
  std::vector<std::uint32_t> next_;         // [E + 1]
  std::vector<std::uint32_t> place_;        // [choices] in send_
  std::vector<std::size_t> send_bytes_;     // [ranks] of rows
  std::vector<std::size_t> receive_bytes_;  // [ranks] of rows
  const tools::RankRouting* routing_ = nullptr;
};

ExchangeWay::ExchangeWay(const Group& group, const Shape& shape,
                         std::shared_ptr<Collectives> collectives)
    : collectives_(std::move(collectives)),
      tokens_(shape.tokens[static_cast<std::size_t>(group.rank())]),
      ranks_(static_cast<std::size_t>(group.size())),
      topk_(static_cast<std::size_t>(shape.topk)),
      hidden_(static_cast<std::size_t>(shape.hidden)),
      row_bytes_(shape.row_bytes()),
      x_(static_cast<std::size_t>(tokens_), row_bytes_),
      send_(static_cast<std::size_t>(tokens_) * topk_, row_bytes_),
      receive_(static_cast<std::size_t>(shape.total_tokens()) * topk_, row_bytes_),
      outputs_(static_cast<std::size_t>(shape.total_tokens()) * topk_, row_bytes_),
      returned_(static_cast<std::size_t>(tokens_) * topk_, row_bytes_),
      first_expert_(ranks_ + 1),
      sent_(shape.expert_rank.size()),
      send_bytes_(ranks_),
      receive_bytes_(ranks_) {
  for (std::size_t e = 0; e < sent_.size(); ++e) {
    ++first_expert_[static_cast<std::size_t>(shape.expert_rank[e]) + 1];
    if (shape.expert_rank[e] != group.rank()) continue;
    scale_.push_back(tools::expert_scale(static_cast<std::int32_t>(e)));
  }
  std::partial_sum(first_expert_.begin(), first_expert_.end(), first_expert_.begin());
  received_.resize(ranks_ * scale_.size());
  for (std::size_t r = 0; r < ranks_; ++r) {
    sent_counts_.push_back((first_expert_[r + 1] - first_expert_[r]) * sizeof(sent_[0]));
  }
  their_counts_.assign(ranks_, scale_.size() * sizeof(sent_[0]));
}

void ExchangeWay::pack(const tools::RankRouting& routing) {
  std::fill(sent_.begin(), sent_.end(), 0U);
  for (std::int32_t e : routing.topk_idx) {
    if (e >= 0) ++sent_[static_cast<std::size_t>(e)];
  }
  next_.assign(sent_.size() + 1, 0);
  std::partial_sum(sent_.begin(), sent_.end(), next_.begin() + 1);
  for (std::size_t r = 0; r < ranks_; ++r) {
    send_bytes_[r] = (next_[first_expert_[r + 1]] - next_[first_expert_[r]]) * row_bytes_;
  }
  place_.resize(routing.topk_idx.size());
  for (std::size_t i = 0; i < routing.topk_idx.size(); ++i) {
    if (routing.topk_idx[i] < 0) continue;
    place_[i] = next_[static_cast<std::size_t>(routing.topk_idx[i])]++;
    copy_plain(send_.row(place_[i]), x_.row(i / topk_), row_bytes_);
  }
}

void ExchangeWay::exchange_counts() {
  collectives_->all_to_all(reinterpret_cast<std::byte*>(sent_.data()), sent_counts_,
                           reinterpret_cast<std::byte*>(received_.data()), their_counts_);
  for (std::size_t q = 0; q < ranks_; ++q) {
    const std::uint32_t* theirs = received_.data() + q * scale_.size();
    receive_bytes_[q] = std::accumulate(theirs, theirs + scale_.size(), 0U) * row_bytes_;
  }
}

void ExchangeWay::dispatch(const tools::RankRouting& routing) {
  routing_ = &routing;
  pack(routing);
  exchange_counts();
  collectives_->all_to_all(send_.data(), send_bytes_, receive_.data(), receive_bytes_);
}

void ExchangeWay::experts() {
  std::size_t row = 0;
  for (std::size_t i = 0; i < received_.size(); ++i) {
    for (std::uint32_t n = 0; n < received_[i]; ++n, ++row) {
      run_expert(scale_[i % scale_.size()], receive_.row(row), hidden_, outputs_.row(row));
    }
  }
}

void ExchangeWay::combine(const Rows& out) {
  collectives_->all_to_all(outputs_.data(), receive_bytes_, returned_.data(), send_bytes_);
  for (std::size_t t = 0; t < static_cast<std::size_t>(out.num_rows); ++t) {
    std::array<const std::byte*, 64> rows;
    std::array<float, 64> weights;
    std::size_t count = 0;
    for (std::size_t i = t * topk_; i < (t + 1) * topk_; ++i) {
      if (routing_->topk_idx[i] < 0) continue;
      rows[count] = returned_.row(place_[i]);
      weights[count++] = routing_->topk_weights[i];
    }
    sum_rows({.rows = {rows.data(), count}, .weights = weights.data(), .hidden = hidden_},
             out.row(static_cast<std::int64_t>(t)));
  }
}

// Every token goes to every rank with its routing beside it, in one all-gather; partial sums of
// every token come back by reduce-scatter.
class AgRsWay final : public Way {
 public:
  AgRsWay(const Group& group, const Shape& shape, std::shared_ptr<Collectives> collectives);

  Rows input() override {
    return {own_.data(), tokens(rank_), shape_.hidden, DType::bf16,
            static_cast<std::int64_t>(record_bytes_)};
  }
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override { local_.run_experts(scratch_); }
  void combine(const Rows& out) override;

 private:
  int tokens(int rank) const { return shape_.tokens[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<Collectives> collectives_;
  Shape shape_;
  int rank_;
  std::size_t most_;
  std::size_t routing_bytes_;             // of a token: top-k indices, or weights
  std::size_t record_bytes_;              // a row, its indices, its weights
  Matrix own_;                            // records
  Matrix all_;                            // records of all ranks
  Matrix scratch_;                        // outputs of the local experts
  Matrix sums_;                           // [ranks][most tokens]
  Matrix mine_;                           // [most tokens] of them
  std::vector<std::size_t> block_bytes_;  // [ranks] of records
  LocalRows local_;
};

std::size_t record_bytes(const Shape& shape) {
  return (shape.row_bytes() + static_cast<std::size_t>(shape.topk) * 8 + 63) / 64 * 64;
}

AgRsWay::AgRsWay(const Group& group, const Shape& shape, std::shared_ptr<Collectives> collectives)
    : collectives_(std::move(collectives)),
      shape_(shape),
      rank_(group.rank()),
      most_(static_cast<std::size_t>(shape.max_tokens())),
      routing_bytes_(static_cast<std::size_t>(shape.topk) * 4),
      record_bytes_(record_bytes(shape)),
      own_(most_, record_bytes_),
      all_(most_ * static_cast<std::size_t>(group.size()), record_bytes_),
      scratch_(
          static_cast<std::size_t>(shape.total_tokens()) * static_cast<std::size_t>(shape.topk),
          shape.row_bytes()),
      sums_(most_ * static_cast<std::size_t>(group.size()), shape.row_bytes()),
      mine_(most_, shape.row_bytes()),
      local_(shape, rank_) {
  for (int q = 0; q < group.size(); ++q) {
    const std::size_t rows = collectives_->even() ? most_ : static_cast<std::size_t>(tokens(q));
    block_bytes_.push_back(rows * record_bytes_);
  }
}

void AgRsWay::dispatch(const tools::RankRouting& routing) {
  const std::size_t row_bytes = shape_.row_bytes();
  const auto topk = static_cast<std::size_t>(shape_.topk);
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens(rank_)); ++t) {
    std::byte* after_row = own_.row(t) + row_bytes;
    std::memcpy(after_row, routing.topk_idx.data() + t * topk, routing_bytes_);
    std::memcpy(after_row + routing_bytes_, routing.topk_weights.data() + t * topk, routing_bytes_);
  }
  collectives_->all_gather(own_.data(), all_.data(), block_bytes_);
  local_.clear();
  const std::byte* block = all_.data();
  for (int q = 0; q < shape_.ranks(); ++q) {
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens(q)); ++t) {
      const std::byte* record = q == rank_ ? own_.row(t) : block + t * record_bytes_;
      local_.add(record, reinterpret_cast<const std::int32_t*>(record + row_bytes),
                 reinterpret_cast<const float*>(record + row_bytes + routing_bytes_));
    }
    block += block_bytes_[static_cast<std::size_t>(q)];
  }
  local_.group();
}

void AgRsWay::combine(const Rows& out) {
  std::size_t row = 0;
  for (std::size_t q = 0; q < static_cast<std::size_t>(shape_.ranks()); ++q) {
    for (std::size_t t = 0; t < static_cast<std::size_t>(shape_.tokens[q]); ++t) {
      local_.sum(Store::near, row++, scratch_, sums_.row(q * most_ + t));
    }
  }
  const std::size_t row_bytes = shape_.row_bytes();
  const bool in_place = static_cast<std::size_t>(out.num_rows) == most_ &&
                        static_cast<std::size_t>(out.stride()) == row_bytes;
  const std::byte* mine =
      collectives_->reduce_scatter(sums_.data(), in_place ? out.row(0) : mine_.data(),
                                   most_ * static_cast<std::size_t>(shape_.hidden));
  for (std::int64_t t = 0; t < out.num_rows; ++t) {
    const std::byte* from = mine + static_cast<std::size_t>(t) * row_bytes;
    if (from != out.row(t)) copy_plain(out.row(t), from, row_bytes);
  }
}

}  // namespace

void Notice::write(const void* from, std::size_t bytes) const {
  std::memcpy(area_, from, bytes);
  // publishes: the text, to read() on every rank.
  written_.set_for_all(0, 1);
}

void Notice::read(void* to, std::size_t bytes) const {
  // acquires: what rank 0 wrote.
  written_.wait(0, rank_, 1);
  std::memcpy(to, area_, bytes);
}

void add_collectives(std::vector<NamedWay>& ways, const Group& group, const Shape& shape,
                     const std::shared_ptr<Collectives>& collectives) {
  ways.push_back({{collectives->name() + " all-to-all", Kind::messages, Layout::expert_major,
                   collectives->all_to_all_text()},
                  std::make_unique<ExchangeWay>(group, shape, collectives)});
  ways.push_back({{collectives->name() + " all-gather", Kind::gather, Layout::rank_major,
                   collectives->gather_text(), collectives->tolerance()},
                  std::make_unique<AgRsWay>(group, shape, collectives)});
}

}  // namespace ubep::rivals
