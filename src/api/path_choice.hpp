// What `automatic` becomes: the path of a dispatch and the store policy, by what was measured.
//
// docs/adr/0010-choice-of-path.md has the figures.
#pragma once

#include <cstdint>

#include "base/fabric_facts.hpp"
#include "ubep/dispatch.hpp"

namespace ubep {

struct StoreChoice {
  Store store = Store::far;
  const char* reason = "";
};
StoreChoice choose_store(Store asked, Placement placement);

struct PathChoice {
  Path path = Path::read;
  const char* reason = "";
};

struct PathFacts {
  Store store = Store::far;
  bool push = false;        // there are inboxes
  bool hosts = false;       // some peers' memory is not mapped here
  std::uint64_t bytes = 0;  // of this rank's tokens
};
PathChoice choose_path(const DispatchOptions& options, const PathFacts& facts);

}  // namespace ubep
