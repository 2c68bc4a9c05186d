// How `ubep sim` shows its points: a table, and JSON of schema "ubep-sim/1".
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/ubep/sim/points.hpp"

namespace ubep::tools {

struct SimCost {
  double seconds = 0;
  double memory_gib = 0;
  std::uint64_t events = 0;
};

// "seed 1", "seeds 1 to 4".
std::string seeds_text(const SimPlan& plan);
// "variant base", or how many.
std::string variants_text(const SimPlan& plan);
// "pod generic: 64 ranks, ...": what all points have in common.
std::string shape_text(const SimPlan& plan);
nlohmann::ordered_json config_json(const SimPlan& plan);

// With `lists_variants`, each variant's results, too.
void print_points(const SimPlan& plan, const std::vector<SimPoint>& points, bool lists_variants,
                  std::FILE* to);
void print_cost(const SimCost& cost, std::FILE* to);

nlohmann::ordered_json to_json(const SimPlan& plan, const std::vector<SimPoint>& points,
                               bool lists_variants, const SimCost& cost);

}  // namespace ubep::tools
