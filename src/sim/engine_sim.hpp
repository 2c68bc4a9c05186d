// The library's engine over the simulated fabric.
#pragma once

#include <memory>

#include "engine/engine.hpp"

namespace ubep::sim {

class SimFabric;
std::shared_ptr<Engine> make_sim_engine(SimFabric& fabric, const EngineOptions& options);

}  // namespace ubep::sim
