// `ubep sim --trace`: what every lane did when, for Perfetto (ui.perfetto.dev) and
// chrome://tracing.
#pragma once

#include <string>
#include <vector>

#include "sim/layer_run.hpp"

namespace ubep::tools {

// The Trace Event Format: a rank is a process, a lane a thread, an activity a complete event in
// virtual microseconds. The first thread of a rank shows dispatch, first read and combine.
std::string trace_json(const sim::LayerResult& result, const std::vector<sim::LaneSlice>& slices);

}  // namespace ubep::tools
