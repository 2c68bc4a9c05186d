#include "engine/engine_impl.hpp"
#include "fabric/ucx/fabric.hpp"

namespace ubep {

template class EngineImpl<UcxFabric>;

std::shared_ptr<Engine> make_ucx_engine(UcxFabric& fabric, const EngineOptions& options) {
  return std::make_shared<EngineImpl<UcxFabric>>(fabric, options);
}

}  // namespace ubep
