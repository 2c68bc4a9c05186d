// Rivals that need a package: each built only where the package is.
#pragma once

#include <vector>

#include "bench/rivals/way.hpp"

namespace ubep::rivals {

void start_packages(Group& group);  // before ways are made; MPI_Init and the like
void stop_packages();
void add_packages(std::vector<NamedWay>& ways, Group& group, const Shape& shape);

#if defined(UBEP_RIVALS_MPI)
void start_mpi(const Group& group);
void stop_mpi();
void add_mpi(std::vector<NamedWay>& ways, Group& group, const Shape& shape);
#endif
#if defined(UBEP_RIVALS_TORCH)
void start_gloo(Group& group);
void stop_gloo();
void add_gloo(std::vector<NamedWay>& ways, Group& group, const Shape& shape);
#endif
#if defined(UBEP_RIVALS_ONECCL)
void start_oneccl(Group& group);
void stop_oneccl();
void add_oneccl(std::vector<NamedWay>& ways, Group& group, const Shape& shape);
#endif

}  // namespace ubep::rivals
