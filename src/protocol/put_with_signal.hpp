// Bare rows at their place, then the word `sent`, which the fabric keeps behind them.
#pragma once

#include "protocol/row_protocol.hpp"

namespace ubep {

class PutWithSignal final : public RowProtocol {
 public:
  Protocol id() const override { return Protocol::put_with_signal; }
  Arrival arrival() const override { return Arrival::signalled; }
};

}  // namespace ubep
