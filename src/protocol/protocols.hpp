// The table of protocols. To add one: a header, its line in protocols.cpp, its enumerator and name.
#pragma once

#include <span>

#include "protocol/row_protocol.hpp"

namespace ubep {

// `automatic` is put_with_signal.
const RowProtocol& find_protocol(Protocol protocol);
std::span<const RowProtocol* const> all_protocols();

}  // namespace ubep
