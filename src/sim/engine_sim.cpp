#include "sim/engine_sim.hpp"

#include "engine/engine_impl.hpp"
#include "sim/fabric.hpp"

namespace ubep {

template class EngineImpl<sim::SimFabric>;

namespace sim {

std::shared_ptr<Engine> make_sim_engine(SimFabric& fabric, const EngineOptions& options) {
  return std::make_shared<EngineImpl<SimFabric>>(fabric, options);
}

}  // namespace sim
}  // namespace ubep
