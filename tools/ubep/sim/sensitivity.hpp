// `ubep sim --sensitivity`: what one point's times owe to each number of the pod.
//
// Each parameter (sim_parameters.hpp) of the pod's first variant is made smaller and larger by a
// fifth, alone; all paths run again.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/ubep/sim/options.hpp"

namespace ubep::tools {

inline constexpr double kLess = 0.8;
inline constexpr double kMore = 1.2;

struct Sensitivity {
  // "bsp dispatch": change in % of its time. "push dispatch, less than bsp": change of that
  // reduction in percentage points.
  std::vector<std::string> metrics;
  std::vector<double> base;  // [metrics] us, or %
  struct Row {
    std::string parameter;
    std::vector<double> less;  // [metrics]
    std::vector<double> more;
  };
  std::vector<Row> rows;  // [parameters]
};

// The plan has one point.
Sensitivity measure_sensitivity(const SimPlan& plan);

void print_sensitivity(const Sensitivity& s, std::FILE* to);
nlohmann::ordered_json to_json(const Sensitivity& s);
// A tornado chart of each metric: its parameters by what they move.
std::string tornado_svg(const Sensitivity& s, const std::string& title);

}  // namespace ubep::tools
