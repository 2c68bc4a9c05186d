#include "sim/json_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream buffer;
  if (file.peek() != std::ifstream::traits_type::eof()) buffer << file.rdbuf();
  if (file.bad() || !file.is_open()) {
    throw Error(ErrorCode::invalid_argument, path + ": cannot be read");
  }
  return buffer.str();
}

}  // namespace

void JsonFile::fail(std::size_t at, const std::string& what) const {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}:{}: {}", path, line_at(text, at), what));
}

JsonFile read_json(const std::string& path) { return parse_json(path, contents(path)); }

JsonFile parse_json(const std::string& name, std::string text) {
  JsonFile file{.path = name, .text = std::move(text), .json = {}};
  if (const auto error = first_error(file.text)) file.fail(error->at, error->what);
  file.json = Json::parse(file.text);
  return file;
}

JsonReader::JsonReader(const JsonFile& file)
    : JsonReader(file, file.json, file.text.find_first_not_of(" \t\r\n\xef\xbb\xbf"), "") {}

JsonReader::JsonReader(const JsonFile& file, const Json& object, std::size_t begin,
                       std::string name)
    : file_(file), object_(object), begin_(begin), name_(std::move(name)) {
  if (!object.is_object()) fail("", "is " + object.dump() + ", expected an object");
  places_ = places_within(file.text, begin);
  for (std::size_t i = 1; i < places_.size(); ++i) {
    if (find(places_[i].key) != &places_[i])
      file_.fail(places_[i].at, named(places_[i].key) + " is there twice");
  }
}

JsonReader JsonReader::inner(const std::string& key) {
  const Json& object = need(key);
  // A variant can set a key that the text has not, but only to a number or a text.
  if (find(key) == nullptr) fail(key, "is " + object.dump() + ", expected an object");
  return {file_, object, find(key)->value, named(key)};
}

JsonReader JsonReader::inner(const std::string& key, std::size_t number) {
  const Json& list = need(key);
  const std::size_t at = places_within(file_.text, find(key)->value)[number].value;
  return {file_, list[number], at, fmt::format("{}[{}]", named(key), number)};
}

const Json& JsonReader::need(const std::string& key) {
  known_.insert(key);
  const auto found = object_.find(key);
  if (found == object_.end()) fail(key, "is missing");
  return *found;
}

bool JsonReader::optional(const std::string& key) {
  known_.insert(key);
  return object_.contains(key);
}

double JsonReader::number(const std::string& key, double low, double high) {
  const Json& value = need(key);
  if (!value.is_number()) fail(key, "is " + value.dump() + ", expected a number");
  const auto result = value.get<double>();
  if (!(result >= low && result <= high)) {
    fail(key, fmt::format("is {}, expected {} to {}", value.dump(), low, high));
  }
  return result;
}

std::int64_t JsonReader::integer(const std::string& key, std::int64_t low, std::int64_t high) {
  const double value = number(key, static_cast<double>(low), static_cast<double>(high));
  const auto result = static_cast<std::int64_t>(value);
  if (value != static_cast<double>(result)) {
    fail(key, fmt::format("is {}, expected an integer", value));
  }
  return result;
}

std::string JsonReader::text(const std::string& key) {
  const Json& value = need(key);
  if (!value.is_string()) fail(key, "is " + value.dump() + ", expected a text");
  return value.get<std::string>();
}

bool JsonReader::boolean(const std::string& key) {
  const Json& value = need(key);
  if (!value.is_boolean()) fail(key, "is " + value.dump() + ", expected true or false");
  return value.get<bool>();
}

std::uint64_t JsonReader::rate(const std::string& key) {
  return static_cast<std::uint64_t>(number(key, 1e-3, 1e6) * 1e9);
}

std::uint64_t JsonReader::optional_rate(const std::string& key) {
  return optional(key) && number(key, 0, 1e6) != 0 ? rate(key) : 0;
}

Time JsonReader::time(const std::string& key) {
  return static_cast<Time>(number(key, 0, 1e9) * double{kNanosecond});
}

void JsonReader::finish(const std::string& kind) const {
  for (const JsonPlace& place : places_) {
    if (!known_.contains(place.key)) fail(place.key, "is not a key of " + kind);
  }
  for (const auto& member : object_.items()) {  // set by a variant, so not in the text
    if (!known_.contains(member.key())) fail(member.key(), "is not a key of " + kind);
  }
}

void JsonReader::fail(const std::string& key, const std::string& what) const {
  const JsonPlace* place = find(key);
  const std::string label = named(key);
  file_.fail(place != nullptr ? place->at : begin_, label + (label.empty() ? "" : " ") + what);
}

void JsonReader::fail(const std::string& key, std::size_t number, const std::string& what) const {
  const std::size_t at = places_within(file_.text, find(key)->value)[number].at;
  file_.fail(at, fmt::format("{}[{}] {}", named(key), number, what));
}

const JsonPlace* JsonReader::find(const std::string& key) const {
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const JsonPlace& place) { return place.key == key; });
  return found == places_.end() ? nullptr : &*found;
}

std::string JsonReader::named(const std::string& key) const {
  return name_ + (name_.empty() || key.empty() ? "" : ".") + key;
}

}  // namespace ubep::sim
