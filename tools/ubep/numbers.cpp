#include "tools/ubep/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tools/ubep/input_error.hpp"

namespace ubep::tools {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<int> parse_numbers(const std::string& text, const char* option, int low, int high) {
  std::vector<int> list;
  for (const std::string& part : split(text, ',')) {
    int value = 0;
    const char* end = part.data() + part.size();
    const auto parsed = std::from_chars(part.data(), end, value);
    if (parsed.ec != std::errc{} || parsed.ptr != end || value < low || value > high) {
      throw InputError(fmt::format("{}: '{}' is not a number of {}..{}", option, part, low, high));
    }
    list.push_back(value);
  }
  return list;
}

Roles parse_roles(const std::string& text, int lanes) {
  if (text == "auto") return {};
  std::string list = text;
  std::replace(list.begin(), list.end(), ':', ',');
  const std::vector<int> n = parse_numbers(list, "--roles", 0, 64);
  if (n.size() == 3 && n[0] >= 1 && (n[1] >= 1 || lanes == 1) && n[0] + n[1] + n[2] == lanes) {
    return {.count = n[0], .send = n[1], .receive = n[2]};
  }
  throw InputError(
      fmt::format("--roles: '{}' is not COUNT:SEND:RECEIVE of {} lanes in all, at least "
                  "one that counts and one that sends",
                  text, lanes));
}

std::vector<std::int32_t> block_map(int experts, int ranks) {
  std::vector<std::int32_t> owner;
  for (int r = 0; r < ranks; ++r) {
    const int count = experts / ranks + (r < experts % ranks ? 1 : 0);
    owner.insert(owner.end(), static_cast<std::size_t>(count), r);
  }
  return owner;
}

}  // namespace ubep::tools
