// Lists of numbers on the command line, and the default expert map.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ubep/trace.hpp"

namespace ubep::tools {

std::vector<std::string> split(const std::string& text, char separator);

// "7,0,19". Throws InputError that names the option and the part that is no number of low..high.
std::vector<int> parse_numbers(const std::string& text, const char* option, int low, int high);

// "1:40:7" or "auto", for so many lanes. Throws InputError.
Roles parse_roles(const std::string& text, int lanes);

// Owner of each expert: blocks, the first E mod R ranks own one expert more.
std::vector<std::int32_t> block_map(int experts, int ranks);

}  // namespace ubep::tools
