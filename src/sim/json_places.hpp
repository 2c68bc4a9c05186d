// Where things stand in the text of a JSON document, for messages that name a line.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ubep::sim {

struct JsonError {
  std::size_t at = 0;
  std::string what;
};
// The first error of the text; none: it is a document.
std::optional<JsonError> first_error(const std::string& text);

// A member of an object, or an element of a list (without a key).
struct JsonPlace {
  std::string key;
  std::size_t at = 0;     // where it begins: its key, if it has one
  std::size_t value = 0;  // where its value begins
};
// Of the object or list that begins at `at` of a text without errors, in the order of the text.
std::vector<JsonPlace> places_within(const std::string& text, std::size_t at);

// Counted from 1.
std::size_t line_at(const std::string& text, std::size_t at);

}  // namespace ubep::sim
