// How `ubep sim tpot` shows its points.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>

#include "tools/ubep/sim/tpot.hpp"

namespace ubep::tools {

// `plan` is that of the first point.
void print_tpot(const TpotCommand& command, const SimPlan& plan, const TpotResult& result,
                std::FILE* to);
nlohmann::ordered_json tpot_json(const TpotCommand& command, const SimPlan& plan,
                                 const TpotResult& result);

}  // namespace ubep::tools
