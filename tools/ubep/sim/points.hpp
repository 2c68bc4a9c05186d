// What the runs of a plan come to: a point for each number of tokens.
//
// An ensemble is the variants of a pod with their weights; a variant's value is the mean over its
// seeds. Reductions and differences are taken within each variant, and then over the ensemble.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/ubep/sim/grid.hpp"
#include "tools/ubep/summary.hpp"

namespace ubep::tools {

// 5, 50 and 95 % of an ensemble's weight.
struct Interval {
  double low = 0;
  double mid = 0;
  double high = 0;

  bool contains_zero() const { return low <= 0 && high >= 0; }
};
Interval interval_of(std::span<const Weighted> values);

// Microseconds over the ranks (and seeds) of the median variant.
struct OperationFigures {
  double mean = 0;
  double p50 = 0;
  double p99 = 0;
  double max_lane = 0;  // until the last lane had stored its last row
  Interval ensemble;    // of the mean
  Breakdown lanes;
};

struct PathFigures {
  std::string path;
  std::string protocol;
  std::string variant;  // the median one by dispatch + combine
  OperationFigures dispatch;
  OperationFigures combine;
  double effective_gbps = 0;  // of a rank: rows that it gets and returns, over the time of both
  double sync_share = 0;      // of its lanes' time in both
  Roles roles;
  double bytes_sent = 0;               // by all ranks
  std::uint64_t dispatched_bytes = 0;  // of a row
  std::int64_t wrong_rows = 0;
  struct Means {
    double dispatch = 0;
    double combine = 0;
  };
  std::vector<Means> variants;  // [variants]
};

// How much less time a path takes than bsp, as a share; negative where it takes more.
struct Reduction {
  std::string path;
  Interval dispatch;
  Interval combine;
};

// The interval of two paths' difference contains 0.
struct Unranked {
  std::string operation;
  std::string a;
  std::string b;
};

struct SimPoint {
  int tokens = 0;
  NullModel null;
  std::vector<PathFigures> paths;
  std::vector<Reduction> reductions;  // of all paths but bsp, where bsp is among them
  std::vector<Unranked> unranked;
};

std::vector<SimPoint> points_of(const SimPlan& plan, const SimGrid& grid);

}  // namespace ubep::tools
