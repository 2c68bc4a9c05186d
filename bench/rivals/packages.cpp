#include "bench/rivals/packages.hpp"

namespace ubep::rivals {

void start_packages([[maybe_unused]] Group& group) {
#if defined(UBEP_RIVALS_MPI)
  start_mpi(group);
#endif
#if defined(UBEP_RIVALS_TORCH)
  start_gloo(group);
#endif
#if defined(UBEP_RIVALS_ONECCL)
  start_oneccl(group);
#endif
}

void stop_packages() {
#if defined(UBEP_RIVALS_ONECCL)
  stop_oneccl();
#endif
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
#if defined(UBEP_RIVALS_ONECCL)
  add_oneccl(ways, group, shape);
#endif
}

}  // namespace ubep::rivals
