#include "sim/pod_variants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

// The element of a list, or the member of an object; null where there is none.
Json* child(Json& parent, const std::string& key) {
  if (parent.is_object()) return parent.contains(key) ? &parent[key] : nullptr;
  std::size_t i = 0;
  const char* const end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, i);
  const bool fits = parent.is_array() && error == std::errc() && stop == end && i < parent.size();
  return fits ? &parent[i] : nullptr;
}

// "" or what is wrong.
std::string set(Json& pod, const std::string& path, const Json& value) {
  Json* object = &pod;
  std::size_t begin = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    object = child(*object, path.substr(begin, dot - begin));
    if (object == nullptr) return fmt::format("the file has no {}", path.substr(0, dot));
    begin = dot + 1;
  }
  if (!object->is_object()) return "is not a path to a key";
  const std::string key = path.substr(begin);
  const bool has_one = object->contains(key);
  if (value.is_structured() || (has_one && (*object)[key].is_structured())) {
    return "may only set a number, a text, true or false";
  }
  (*object)[key] = value;
  return "";
}

// Of an error that names file and line: what is behind them.
std::string without_place(const std::string& what) {
  const std::size_t colon = what.find(": ");
  return colon == std::string::npos ? what : what.substr(colon + 2);
}

Pod read_variant(const JsonFile& file, JsonReader& reader,
                 const std::function<Pod(const JsonFile&)>& read) {
  JsonFile changed = file;
  changed.path = "";
  const Json& values = reader.need("set");
  JsonReader set_reader = reader.inner("set");
  for (const auto& [path, value] : values.items()) {
    (void)set_reader.optional(path);
    const std::string wrong = set(changed.json, path, value);
    if (!wrong.empty()) set_reader.fail(path, wrong);
  }
  try {
    return read(changed);
  } catch (const Error& error) {
    reader.fail("set", "makes no pod: " + without_place(error.what()));
  }
}

}  // namespace

std::vector<PodVariant> read_variants(const JsonFile& file,
                                      const std::function<Pod(const JsonFile&)>& read) {
  std::vector<PodVariant> variants;
  JsonReader reader(file);
  if (!reader.optional("variants")) return variants;
  const Json& list = reader.need("variants");
  if (!list.is_array() || list.empty()) reader.fail("variants", "expected a list of variants");
  double sum = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    JsonReader inner = reader.inner("variants", i);
    PodVariant variant;
    variant.name = inner.text("name");
    variant.weight = inner.number("weight", 1e-6, 1e6);
    variant.pod = read_variant(file, inner, read);
    inner.finish("a variant");
    const auto same = std::find_if(variants.begin(), variants.end(),
                                   [&](const PodVariant& v) { return v.name == variant.name; });
    if (same != variants.end()) inner.fail("name", "is there twice: " + variant.name);
    sum += variant.weight;
    variants.push_back(std::move(variant));
  }
  for (PodVariant& variant : variants) variant.weight /= sum;
  return variants;
}

}  // namespace ubep::sim
