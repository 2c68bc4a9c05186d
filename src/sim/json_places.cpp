#include "sim/json_places.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace ubep::sim {
namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 64;  // what reads and prints documents recurses

// Takes everything, keeps the error.
class ErrorKeeper final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return begin(); }
  bool key(string_t&) override { return true; }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return begin(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t read, const std::string&, const Json::exception& error) override {
    error_ = {read == 0 ? 0 : read - 1, error.what()};
    return false;
  }

  const std::optional<JsonError>& error() const { return error_; }

 private:
  bool begin() {
    if (++depth_ <= kMostDepth) return true;
    error_ = {0, "lists and objects lie more than " + std::to_string(kMostDepth) + " deep"};
    return false;
  }
  bool end() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  std::optional<JsonError> error_;
};

std::size_t skip_any(const std::string& text, std::size_t at, std::string_view characters) {
  return std::min(text.find_first_not_of(characters, at), text.size());
}

std::size_t end_of_string(const std::string& text, std::size_t at) {
  for (++at; text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

std::size_t end_of_value(const std::string& text, std::size_t at) {
  constexpr std::string_view kAfterValue = ",]} \t\r\n";
  int depth = 0;
  do {
    const char c = text[at];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    at = c == '"' ? end_of_string(text, at) : at + 1;
  } while (at < text.size() &&
           (depth != 0 || kAfterValue.find(text[at]) == std::string_view::npos));
  return at;
}

}  // namespace

std::optional<JsonError> first_error(const std::string& text) {
  ErrorKeeper keeper;
  (void)Json::sax_parse(text, &keeper);
  return keeper.error();
}

std::vector<JsonPlace> places_within(const std::string& text, std::size_t at) {
  std::vector<JsonPlace> places;
  const bool has_keys = text[at] == '{';
  for (++at;;) {
    at = skip_any(text, at, ", \t\r\n");
    if (at == text.size() || text[at] == '}' || text[at] == ']') return places;
    JsonPlace place{.key = "", .at = at, .value = at};
    if (has_keys) {
      const std::size_t end = end_of_string(text, at);
      place.key = Json::parse(text.substr(at, end - at)).get<std::string>();
      place.value = skip_any(text, end, ": \t\r\n");
    }
    at = end_of_value(text, place.value);
    places.push_back(std::move(place));
  }
}

std::size_t line_at(const std::string& text, std::size_t at) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(at, text.size()));
  return 1 + static_cast<std::size_t>(std::count(text.begin(), end, '\n'));
}

}  // namespace ubep::sim
