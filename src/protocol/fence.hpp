// The baseline: bare rows at their place, a wait until every owner has acknowledged its own, and
// only then the words `sent`.
#pragma once

#include "protocol/row_protocol.hpp"

namespace ubep {

class Fence final : public RowProtocol {
 public:
  Protocol id() const override { return Protocol::fence; }
  Arrival arrival() const override { return Arrival::acknowledged; }
};

}  // namespace ubep
