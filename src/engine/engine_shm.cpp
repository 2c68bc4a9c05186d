#include "engine/engine_impl.hpp"
#include "fabric/shm/fabric.hpp"

namespace ubep {

template class EngineImpl<ShmFabric>;

std::shared_ptr<Engine> make_shm_engine(ShmFabric& fabric, const EngineOptions& options) {
  return std::make_shared<EngineImpl<ShmFabric>>(fabric, options);
}

}  // namespace ubep
