// What rows cost two ranks of this machine: copies, sums and plans, each by itself, with as much
// memory in use as a layer of the same shape has, so that caches hold what they would hold there.
//
// Purpose: the rates of a pod (`ubep probe`). The rows that are touched, and their order, are those
// of a layer; there is no engine, and each part is timed between barriers.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "sim/library_parts.hpp"
#include "tools/ubep/sim/probe_pair.hpp"
#include "ubep/types.hpp"

namespace ubep::tools {

struct ProbeShape {
  int tokens = 32;
  int hidden = 2048;
  int topk = 8;
  int experts = 128;
  int laps = 0;  // of each kind
  Store store = Store::near;

  std::size_t row_bytes() const { return static_cast<std::size_t>(hidden) * 2; }
};

// Seconds per row, but for the plan, which is per dispatch.
struct RowTimes {
  enum Part {
    plan,
    small_plan,  // of one token and eight experts
    warm_plan,   // the same again and again
    share,       // own tokens to where the peer reads them
    copy,        // own tokens to their place
    take,        //   and those of the peer, from where it shared them
    put,         // own tokens to their place in the peer's memory
    bsp_put,     //   or to a window there
    bsp_copy,    // own tokens to their place, after that
    bsp_take,    //   and rows that the peer has put
    out_share,   // outputs to where the peer reads them
    back_put,    //   or to the peer's memory
    sum,         // rows of sums of own outputs
    mixed_sum,   //   and of own ones and the peer's, where they are
    back_sum,    //   or have been put back
    count
  };
  std::array<double, count> seconds = {};
  // Of what one rank sends to the other, on average.
  double rows = 0;
  double tokens = 0;
};

// Rows of all ranks' areas, and both ranks' choices. Made before the fork.
class ProbeRows {
 public:
  explicit ProbeRows(const ProbeShape& shape);

  // Both ranks at the same time.
  RowTimes measure(Stage& stage, int rank) const;

  const ProbeShape& shape() const { return shape_; }

  // What a rank does with its rows in one set of choices.
  struct Copy {
    std::size_t from = 0;  // token, or output
    std::size_t to = 0;
  };
  struct Summand {
    bool peers = false;
    std::size_t at = 0;    // its output, at its owner
    std::size_t back = 0;  // its place among those that have been put back
  };
  struct Lists {
    std::vector<Copy> own;    // tokens of its own to its rows
    std::vector<Copy> taken;  // the peer's to its rows
    std::vector<Copy> put;    // tokens of its own to the peer's rows
    std::vector<Copy> back;   // outputs to the peer
    std::vector<std::size_t> crossing;
    std::vector<Summand> sums;  // [tokens x topk]
    std::size_t rows = 0;       // that it gets
  };
  const Lists& lists(std::size_t set, int rank) const {
    return lists_[set][static_cast<std::size_t>(rank)];
  }
  std::size_t sets() const { return lists_.size(); }
  std::size_t most_rows() const { return most_rows_; }
  // [sets][2]
  const std::vector<std::vector<sim::RoutedTokens>>& routing() const { return routing_; }
  const std::vector<std::vector<sim::RoutedTokens>>& small_routing() const {
    return small_routing_;
  }

  // Shared rows of a rank: its tokens and outputs, and what the peer puts there; twice, as
  // dispatches take turns.
  enum class Area { tokens, outputs, inbox, back };
  std::byte* area(Area area, int rank, std::size_t turn) const;

 private:
  std::size_t area_rows() const { return most_rows_; }

  ProbeShape shape_;
  std::vector<std::vector<sim::RoutedTokens>> routing_, small_routing_;
  std::vector<std::array<Lists, 2>> lists_;
  std::size_t most_rows_ = 0;
  std::unique_ptr<SharedBytes> shared_;
};

}  // namespace ubep::tools
