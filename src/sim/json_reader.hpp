// Reads a JSON file key by key; what is wrong with it is told with file, line and key.
//
//   const JsonFile file = read_json(path);
//   JsonReader reader(file);
//   const auto ranks = reader.integer("ranks", 1, 1024);
//   reader.finish("a pod");  // no other keys
//
// Everything throws ubep::Error(invalid_argument).
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "sim/event_queue.hpp"
#include "sim/json_places.hpp"

namespace ubep::sim {

using Json = nlohmann::json;

struct JsonFile {
  std::string path;
  std::string text;
  Json json;

  [[noreturn]] void fail(std::size_t at, const std::string& what) const;
};

JsonFile read_json(const std::string& path);
// Of a text that is here; `name` stands for the path in messages.
JsonFile parse_json(const std::string& name, std::string text);

// One object of the file, and where in the text it begins.
class JsonReader {
 public:
  explicit JsonReader(const JsonFile& file);

  // The object under `key`.
  JsonReader inner(const std::string& key);
  // The n-th object of the list under `key`.
  JsonReader inner(const std::string& key, std::size_t number);

  const Json& need(const std::string& key);
  bool optional(const std::string& key);
  double number(const std::string& key, double low, double high);
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high);
  std::string text(const std::string& key);
  bool boolean(const std::string& key);
  // Rates in GB/s, times in ns.
  std::uint64_t rate(const std::string& key);
  // 0 stands for one that is left out.
  std::uint64_t optional_rate(const std::string& key);
  Time time(const std::string& key);

  // Every key must have been asked for. kind: what the file describes.
  void finish(const std::string& kind) const;

  // At the key, or where the object begins.
  [[noreturn]] void fail(const std::string& key, const std::string& what) const;
  // At the n-th element of the list under `key`.
  [[noreturn]] void fail(const std::string& key, std::size_t number, const std::string& what) const;

 private:
  JsonReader(const JsonFile& file, const Json& object, std::size_t begin, std::string name);
  const JsonPlace* find(const std::string& key) const;
  std::string named(const std::string& key) const;

  const JsonFile& file_;
  const Json& object_;
  std::size_t begin_;
  std::string name_;
  std::vector<JsonPlace> places_;
  std::set<std::string> known_;
};

}  // namespace ubep::sim
