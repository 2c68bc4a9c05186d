// --protocol: how pushed rows are known to have arrived.
#pragma once

#include <string>

#include "tools/ubep/enum_option.hpp"
#include "tools/ubep/numbers.hpp"
#include "ubep/types.hpp"

namespace ubep::tools {

struct ProtocolChoice {
  Protocol protocol = Protocol::automatic;
  int checksum_rows = 0;
};

// As on the command line.
inline std::string protocol_text(const ProtocolChoice& choice) {
  const std::string text = name(choice.protocol);
  return choice.checksum_rows == 0 ? text : text + ":" + std::to_string(choice.checksum_rows);
}

// A name, or dc:ROWS.
inline ProtocolChoice protocol_of(const std::string& text) {
  const std::string dc = std::string(name(Protocol::checksum)) + ":";
  if (text.starts_with(dc)) {
    const std::vector<int> rows = parse_numbers(text.substr(dc.size()), "--protocol", 1, 1 << 20);
    if (rows.size() == 1) return {Protocol::checksum, rows.front()};
    throw InputError("--protocol: '" + text + "' is not dc:ROWS");
  }
  return {one_of(text, "--protocol",
                 {Protocol::automatic, Protocol::put_with_signal, Protocol::token_flag_16,
                  Protocol::token_flag_128, Protocol::token_flag_512, Protocol::checksum,
                  Protocol::sentinel, Protocol::fence}),
          0};
}

}  // namespace ubep::tools
