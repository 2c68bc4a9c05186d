// Direct placement by hand, expert_major: what an expert user would write for one shape.
//
// Every rank has a window [local expert][source][token] for rows and one for outputs, twice.
// Sources store rows (or, pulling, a list of them) into the owners' windows; combine reads the
// outputs where the experts wrote them. No layout to choose, no flow control beyond the two
// buffers, no checks.
#pragma once

#include "bench/rivals/rows.hpp"
#include "bench/rivals/way.hpp"

namespace ubep::rivals {

struct DirectChoice {
  bool pull = false;              // the owner copies rows out of the source's shared activations
  Store rows = Store::near;       // how rows are stored into the owners' windows
  bool streamed_outputs = false;  // experts write privately; combine streams the outputs
};

class DirectWay : public Way {
 public:
  DirectWay(Group& group, const Shape& shape, const DirectChoice& choice);

  // Bytes of one rank's area: rows, outputs, shared activations, lists and counts, twice.
  static std::size_t area_bytes(const Shape& shape);

  Rows input() override;
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override;
  void combine(const Rows& out) override;

 protected:
  // Another place for the areas, and another way of waiting: `areas` [ranks].
  DirectWay(Group& group, const Shape& shape, const DirectChoice& choice,
            std::vector<std::byte*> areas);
  // After it, what any rank stored before its own call can be read.
  virtual void meet();

 private:
  struct Entry {
    std::uint32_t expert;  // local to the owner
    std::uint32_t token;
  };
  struct Choice {
    std::int32_t owner = -1;
    std::uint32_t expert = 0;  // local to the owner
    std::uint32_t slot = 0;
  };
  std::size_t slot_index(std::size_t expert, int source, std::size_t slot) const {
    return (expert * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(source)) * most_ +
           slot;
  }
  std::byte* half(int rank) const {
    return areas_[static_cast<std::size_t>(rank)] + epoch_ % 2 * half_bytes_;
  }
  std::byte* row(int rank, std::size_t index) const { return half(rank) + index * row_bytes_; }
  std::byte* output(int rank, std::size_t index) const {
    return half(rank) + (window_rows_ + index) * row_bytes_;
  }
  std::byte* token(int rank, std::size_t t) const {
    return half(rank) + (2 * window_rows_ + t) * row_bytes_;
  }
  std::uint32_t* counts(int owner, int source) const;
  Entry* entries(int owner, int source) const;
  void place(const tools::RankRouting& routing);
  void store_rows(const tools::RankRouting& routing);
  void pull_rows();

  Shape shape_;
  DirectChoice choice_;
  int rank_;
  int ranks_;
  std::size_t most_;
  std::size_t row_bytes_;
  std::size_t local_experts_;  // the most of any rank
  std::size_t window_rows_;
  std::size_t half_bytes_;
  std::size_t counts_bytes_;   // of one source
  std::size_t entries_bytes_;  // likewise
  std::uint64_t epoch_ = 0;
  std::uint64_t meetings_ = 0;
  std::vector<std::byte*> areas_;
  Flags flags_;
  Matrix x_;
  Matrix pulled_;
  Matrix outputs_;
  std::vector<std::uint32_t> local_;  // [E] id within its owner
  std::vector<float> scale_;          // of local experts
  std::vector<std::uint32_t> next_;   // [ranks][local experts]
  std::vector<Choice> choices_;       // [tokens][topk]
  const tools::RankRouting* routing_ = nullptr;
};

}  // namespace ubep::rivals
