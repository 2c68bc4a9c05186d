// All-gather and reduce-scatter through a double-buffered shared area: what serving engines do on
// CPUs. Every token goes to every rank, partial sums of every token come back.
//
// Written apart from any engine's code. Given what the library gives itself: the same copies and
// sums, own rows and own tokens never cross, the routing travels with the rows, one flag per pair
// of ranks, no barrier: two buffers need no credits, since each rank waits for all others twice a
// layer.
#pragma once

#include "bench/rivals/rows.hpp"
#include "bench/rivals/way.hpp"

namespace ubep::rivals {

enum class GatherStores {
  streamed,       // rows, and sums made in private memory, are streamed into the buffer
  plain,          // plain stores; sums are made in the buffer
  streamed_sums,  // rows are streamed; sums are streamed into the buffer as they are made
  // Kernels take index lists, as with rank_major: rows are read in the buffers, not gathered.
  in_place,          // activations are written into the buffer, sums made there: plain stores
  in_place_streamed  // stored as streamed_sums
};

class GatherWay final : public Way {
 public:
  // all_reduce: every rank sums every token of every rank and keeps its own: the naive way.
  GatherWay(Group& group, const Shape& shape, GatherStores stores, bool all_reduce);

  Rows input() override;
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override { local_.run_experts(scratch_); }
  void combine(const Rows& out) override;

 private:
  // One rank's half of a buffer.
  struct Buffer {
    std::byte* x;
    std::byte* topk_idx;
    std::byte* topk_weights;
    std::byte* sums;  // [all tokens, hidden]
  };
  bool reads_in_place() const { return stores_ >= GatherStores::in_place; }
  bool plain_stores() const {
    return stores_ == GatherStores::plain || stores_ == GatherStores::in_place;
  }
  int tokens(int rank) const { return shape_.tokens[static_cast<std::size_t>(rank)]; }
  const Buffer& of(int rank) const {
    return buffers_[epoch_ % 2 * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
  }
  std::size_t first_token(int rank) const { return first_[static_cast<std::size_t>(rank)]; }
  void add_rows(int source, const tools::RankRouting& routing);
  void write_sums(int source);
  void add_up(int source, std::byte* out, std::size_t stride) const;

  Shape shape_;
  GatherStores stores_;
  bool all_reduce_;
  int rank_;
  int ranks_;
  std::uint64_t epoch_ = 0;
  std::vector<std::size_t> first_;  // of each rank's tokens
  std::vector<Buffer> buffers_;     // [2][ranks]
  Flags gathered_;
  Flags reduced_;
  Matrix x_;
  Matrix all_;      // [all tokens, hidden]
  Matrix scratch_;  // outputs of the local experts
  Matrix sums_;     // [all tokens, hidden]
  LocalRows local_;
};

}  // namespace ubep::rivals
