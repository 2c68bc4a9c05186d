// One routed choice as it travels in a record: token `token` chose `expert` as its k-th.
#pragma once

#include <cstdint>

namespace ubep {

struct Entry {
  std::uint32_t token;
  std::uint16_t expert;  // global id
  std::uint16_t k;
  float weight;
};
static_assert(sizeof(Entry) == 12, "entries are part of the wire layout");

}  // namespace ubep
