#include "bench/rivals/packages.hpp"

namespace ubep::rivals {

void start_packages([[maybe_unused]] const Group& group) {
#if defined(UBEP_RIVALS_MPI)
  start_mpi();
#endif
#if defined(UBEP_RIVALS_TORCH)
  start_gloo(group);
#endif
}

void stop_packages() {
#if defined(UBEP_RIVALS_TORCH)
  stop_gloo();
#endif
#if defined(UBEP_RIVALS_MPI)
  stop_mpi();
#endif
}

void add_packages([[maybe_unused]] std::vector<NamedWay>& ways, [[maybe_unused]] Group& group,
                  [[maybe_unused]] const Shape& shape) {
#if defined(UBEP_RIVALS_MPI)
  add_mpi(ways, group, shape);
#endif
#if defined(UBEP_RIVALS_TORCH)
  add_gloo(ways, group, shape);
#endif
}

}  // namespace ubep::rivals
