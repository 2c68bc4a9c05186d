// Which ways there are.
#pragma once

#include <vector>

#include "bench/rivals/way.hpp"

namespace ubep::rivals {

// Collective: every rank makes the same ones. Those of MPI and of packages only where this program
// was built with them.
std::vector<NamedWay> make_ways(Group& group, const Shape& shape, bool fixed_choices);

// Bytes of memory that all of them share, at most; resident as far as they are used.
std::size_t shared_bytes(const Shape& shape);

}  // namespace ubep::rivals
