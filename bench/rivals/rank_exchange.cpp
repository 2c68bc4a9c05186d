#include "bench/rivals/rank_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "bench/rivals/rows.hpp"

namespace ubep::rivals {
namespace {

class RankExchangeWay final : public Way {
 public:
  RankExchangeWay(const Group& group, const Shape& shape, AllToAll all_to_all);

  Rows input() override { return x_.view(tokens_); }
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override { local_.run_experts(scratch_); }
  void combine(const Rows& out) override;

 private:
  bool goes_to(std::size_t owner, const std::int32_t* topk_idx) const;
  void pack(const tools::RankRouting& routing);
  std::uint32_t pack_for(std::size_t owner, std::uint32_t next, const tools::RankRouting& routing,
                         const std::vector<std::size_t>* at);
  void exchange_counts();
  std::vector<std::size_t> bytes_of(const std::vector<std::uint32_t>& rows,
                                    std::size_t bytes) const;

  AllToAll all_to_all_;
  Shape shape_;
  std::size_t rank_;
  std::size_t ranks_;
  int tokens_;
  std::size_t topk_;
  std::size_t record_bytes_;  // a row, its indices, its weights
  Matrix x_;
  Matrix send_;      // records by owner, but for this rank's, which stand behind
  Matrix receive_;   // by source
  Matrix scratch_;   // outputs of the local experts
  Matrix sums_;      // as receive_
  Matrix returned_;  // as send_
  LocalRows local_;
  std::vector<std::uint32_t> sent_;      // [ranks] rows
  std::vector<std::uint32_t> received_;  // [ranks] rows
  std::vector<std::size_t> counts_;      // [ranks] bytes of a count
  std::uint32_t first_own_ = 0;          // in send_
  std::vector<std::vector<std::uint32_t>>
      places_;                      // [tokens][ranks that get it, in order] in send_
  std::vector<std::size_t> lower_;  // [tokens] such ranks before this one
  std::vector<float> ones_;
};

std::size_t record_bytes(const Shape& shape) {
  return (shape.row_bytes() + static_cast<std::size_t>(shape.topk) * 8 + 63) / 64 * 64;
}

RankExchangeWay::RankExchangeWay(const Group& group, const Shape& shape, AllToAll all_to_all)
    : all_to_all_(std::move(all_to_all)),
      shape_(shape),
      rank_(static_cast<std::size_t>(group.rank())),
      ranks_(static_cast<std::size_t>(group.size())),
      tokens_(shape.tokens[rank_]),
      topk_(static_cast<std::size_t>(shape.topk)),
      record_bytes_(record_bytes(shape)),
      x_(static_cast<std::size_t>(tokens_), shape.row_bytes()),
      send_(static_cast<std::size_t>(tokens_) * ranks_, record_bytes_),
      receive_(static_cast<std::size_t>(shape.total_tokens()), record_bytes_),
      scratch_(static_cast<std::size_t>(shape.total_tokens()) * topk_, shape.row_bytes()),
      sums_(static_cast<std::size_t>(shape.total_tokens()), shape.row_bytes()),
      returned_(static_cast<std::size_t>(tokens_) * ranks_, shape.row_bytes()),
      local_(shape, group.rank()),
      sent_(ranks_),
      received_(ranks_),
      counts_(ranks_, sizeof(std::uint32_t)),
      places_(static_cast<std::size_t>(tokens_)),
      lower_(places_.size()),
      ones_(ranks_, 1.0F) {}

// Of rows that travel.
std::vector<std::size_t> RankExchangeWay::bytes_of(const std::vector<std::uint32_t>& rows,
                                                   std::size_t bytes) const {
  std::vector<std::size_t> all;
  for (std::size_t r = 0; r < ranks_; ++r) all.push_back(r == rank_ ? 0 : rows[r] * bytes);
  return all;
}

bool RankExchangeWay::goes_to(std::size_t owner, const std::int32_t* topk_idx) const {
  return std::any_of(topk_idx, topk_idx + topk_, [&](std::int32_t e) {
    return e >= 0 && shape_.expert_rank[static_cast<std::size_t>(e)] == static_cast<int>(owner);
  });
}

// Records for `owner` from `next` on; their places, as the `at`-th of their token. Returns the end.
std::uint32_t RankExchangeWay::pack_for(std::size_t owner, std::uint32_t next,
                                        const tools::RankRouting& routing,
                                        const std::vector<std::size_t>* at) {
  const std::uint32_t first = next;
  const std::size_t row_bytes = shape_.row_bytes();
  for (std::size_t t = 0; t < places_.size(); ++t) {
    const std::int32_t* idx = routing.topk_idx.data() + t * topk_;
    if (!goes_to(owner, idx)) continue;
    std::byte* record = send_.row(next);
    copy_plain(record, x_.row(t), row_bytes);
    std::memcpy(record + row_bytes, idx, topk_ * 4);
    std::memcpy(record + row_bytes + topk_ * 4, routing.topk_weights.data() + t * topk_, topk_ * 4);
    auto& places = places_[t];
    const std::size_t place = at == nullptr ? places.size() : (*at)[t];
    places.insert(places.begin() + static_cast<std::ptrdiff_t>(place), next++);
  }
  sent_[owner] = next - first;
  return next;
}

void RankExchangeWay::pack(const tools::RankRouting& routing) {
  for (auto& places : places_) places.clear();
  std::uint32_t next = 0;
  for (std::size_t r = 0; r < rank_; ++r) next = pack_for(r, next, routing, nullptr);
  for (std::size_t t = 0; t < places_.size(); ++t) lower_[t] = places_[t].size();
  for (std::size_t r = rank_ + 1; r < ranks_; ++r) next = pack_for(r, next, routing, nullptr);
  first_own_ = next;
  pack_for(rank_, next, routing, &lower_);
}

void RankExchangeWay::exchange_counts() {
  all_to_all_(reinterpret_cast<std::byte*>(sent_.data()), counts_,
              reinterpret_cast<std::byte*>(received_.data()), counts_);
}

void RankExchangeWay::dispatch(const tools::RankRouting& routing) {
  pack(routing);
  exchange_counts();
  all_to_all_(send_.data(), bytes_of(sent_, record_bytes_), receive_.data(),
              bytes_of(received_, record_bytes_));
  local_.clear();
  const auto add = [&](const std::byte* record) {
    const std::byte* idx = record + shape_.row_bytes();
    local_.add(record, reinterpret_cast<const std::int32_t*>(idx),
               reinterpret_cast<const float*>(idx + topk_ * 4));
  };
  std::size_t row = 0;
  for (std::size_t q = 0; q < ranks_; ++q) {
    for (std::size_t i = 0; q != rank_ && i < received_[q]; ++i) add(receive_.row(row++));
  }
  for (std::size_t i = 0; i < sent_[rank_]; ++i) add(send_.row(first_own_ + i));
  local_.group();
}

void RankExchangeWay::combine(const Rows& out) {
  const std::size_t foreign = local_.size() - sent_[rank_];
  for (std::size_t i = 0; i < foreign; ++i) local_.sum(Store::near, i, scratch_, sums_.row(i));
  for (std::size_t i = 0; i < sent_[rank_]; ++i) {
    local_.sum(Store::near, foreign + i, scratch_, returned_.row(first_own_ + i));
  }
  all_to_all_(sums_.data(), bytes_of(received_, shape_.row_bytes()), returned_.data(),
              bytes_of(sent_, shape_.row_bytes()));
  for (std::size_t t = 0; t < places_.size(); ++t) {
    std::array<const std::byte*, tools::kMaxStageRanks> rows;
    std::size_t count = 0;
    for (const std::uint32_t place : places_[t]) rows[count++] = returned_.row(place);
    sum_rows({.rows = {rows.data(), count},
              .weights = ones_.data(),
              .hidden = static_cast<std::size_t>(shape_.hidden)},
             out.row(static_cast<std::int64_t>(t)));
  }
}

}  // namespace

std::unique_ptr<Way> make_rank_exchange(const Group& group, const Shape& shape,
                                        AllToAll all_to_all) {
  return std::make_unique<RankExchangeWay>(group, shape, std::move(all_to_all));
}

}  // namespace ubep::rivals
