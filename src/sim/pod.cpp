#include "sim/pod.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/group_config.hpp"
#include "sim/json_places.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostWindow = 1'000'000'000'000;

struct File {
  std::string path;
  std::string text;

  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}:{}: {}", path, line_at(text, at), what));
  }
};

// One object of the file, and where in the text it begins.
class Reader {
 public:
  Reader(const File& file, const Json& object, std::size_t begin, std::string name)
      : file_(file), object_(object), begin_(begin), name_(std::move(name)) {
    if (!object.is_object()) fail("", "is " + object.dump() + ", expected an object");
    places_ = places_within(file.text, begin);
    for (std::size_t i = 1; i < places_.size(); ++i) {
      if (find(places_[i].key) != &places_[i])
        file_.fail(places_[i].at, named(places_[i].key) + " is there twice");
    }
  }

  // The object under `key`.
  Reader inner(const std::string& key) {
    const Json& object = need(key);
    return {file_, object, find(key)->value, named(key)};
  }
  // The n-th object of the list under `key`.
  Reader inner(const std::string& key, std::size_t number) {
    const Json& list = need(key);
    const std::size_t at = places_within(file_.text, find(key)->value)[number].value;
    return {file_, list[number], at, fmt::format("{}[{}]", named(key), number)};
  }

  const Json& need(const std::string& key) {
    known_.insert(key);
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key, "is missing");
    return *found;
  }

  double number(const std::string& key, double low, double high) {
    const Json& value = need(key);
    if (!value.is_number()) fail(key, "is " + value.dump() + ", expected a number");
    const auto result = value.get<double>();
    if (!(result >= low && result <= high)) {
      fail(key, fmt::format("is {}, expected {} to {}", value.dump(), low, high));
    }
    return result;
  }
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high) {
    const double value = number(key, static_cast<double>(low), static_cast<double>(high));
    const auto result = static_cast<std::int64_t>(value);
    if (value != static_cast<double>(result)) {
      fail(key, fmt::format("is {}, expected an integer", value));
    }
    return result;
  }
  std::string text(const std::string& key) {
    const Json& value = need(key);
    if (!value.is_string()) fail(key, "is " + value.dump() + ", expected a text");
    return value.get<std::string>();
  }
  // Rates in GB/s, times in ns.
  std::uint64_t rate(const std::string& key) {
    return static_cast<std::uint64_t>(number(key, 1e-3, 1e6) * 1e9);
  }
  // 0 stands for one that is left out.
  std::uint64_t optional_rate(const std::string& key) {
    return optional(key) && number(key, 0, 1e6) != 0 ? rate(key) : 0;
  }
  Time time(const std::string& key) {
    return static_cast<Time>(number(key, 0, 1e9) * double{kNanosecond});
  }
  bool optional(const std::string& key) {
    known_.insert(key);
    return object_.contains(key);
  }

  // Every key must have been asked for.
  void finish() const {
    for (const JsonPlace& place : places_) {
      if (!known_.contains(place.key)) fail(place.key, "is not a key of a pod");
    }
  }

  // At the key, or where the object begins.
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    const JsonPlace* place = find(key);
    const std::string label = named(key);
    file_.fail(place != nullptr ? place->at : begin_, label + (label.empty() ? "" : " ") + what);
  }

 private:
  const JsonPlace* find(const std::string& key) const {
    const auto found = std::find_if(places_.begin(), places_.end(),
                                    [&](const JsonPlace& place) { return place.key == key; });
    return found == places_.end() ? nullptr : &*found;
  }
  std::string named(const std::string& key) const {
    return name_ + (name_.empty() || key.empty() ? "" : ".") + key;
  }

  const File& file_;
  const Json& object_;
  std::size_t begin_;
  std::string name_;
  std::vector<JsonPlace> places_;
  std::set<std::string> known_;
};

LaneCosts read_lane(Reader reader) {
  LaneCosts costs;
  costs.issue = reader.time("issue_ns");
  costs.poll = reader.time("poll_ns");
  costs.fence = reader.time("fence_ns");
  costs.put = reader.rate("put_gb_s");
  costs.copy = reader.rate("copy_gb_s");
  costs.reduce = reader.rate("reduce_gb_s");
  costs.plan = reader.rate("plan_gb_s");
  if (reader.optional("window_bytes")) {
    costs.window = static_cast<std::uint64_t>(reader.integer("window_bytes", 0, kMostWindow));
  }
  reader.finish();
  return costs;
}

Tier read_tier(Reader reader) {
  Tier tier;
  tier.name = reader.text("name");
  tier.ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  tier.latency = reader.time("latency_ns");
  tier.uplink = reader.optional_rate("uplink_gb_s");
  reader.finish();
  return tier;
}

void read_tiers(Reader& reader, Pod& pod) {
  const Json& tiers = reader.need("tiers");
  if (!tiers.is_array() || tiers.empty()) reader.fail("tiers", "expected a list of tiers");
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    Reader inner = reader.inner("tiers", i);
    pod.tiers.push_back(read_tier(inner));
    if (i == 0) {
      if (pod.tiers[0].uplink != 0) inner.fail("uplink_gb_s", "of the first tier has no meaning");
      continue;
    }
    const int below = pod.tiers[i - 1].ranks;
    if (pod.tiers[i].ranks > below && pod.tiers[i].ranks % below == 0) continue;
    inner.fail("ranks", fmt::format("is {}, expected a multiple of {}, the tier before",
                                    pod.tiers[i].ranks, below));
  }
  if (pod.tiers.back().ranks != pod.ranks) {
    reader.fail("tiers", fmt::format("end with {} ranks, the pod has {}", pod.tiers.back().ranks,
                                     pod.ranks));
  }
}

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

Time time_of(std::uint64_t bytes, std::uint64_t rate) {
  if (rate == 0) return 0;
  constexpr std::uint64_t kPicosecondsPerSecond = 1'000'000'000'000;
  __extension__ using Wide = unsigned __int128;
  const auto exact = static_cast<Wide>(bytes) * kPicosecondsPerSecond;
  return static_cast<Time>((exact + rate - 1) / rate);
}

const Tier& Pod::tier(int a, int b) const {
  for (const Tier& tier : tiers) {
    if (a / tier.ranks == b / tier.ranks) return tier;
  }
  return tiers.back();
}

Pod read_pod(const std::string& path) {
  const File file{path, contents(path)};
  if (const auto error = first_error(file.text)) file.fail(error->at, error->what);
  const Json json = Json::parse(file.text);
  Reader reader(file, json, file.text.find_first_not_of(" \t\r\n\xef\xbb\xbf"), "");
  Pod pod;
  pod.name = reader.text("name");
  pod.ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  pod.lanes = static_cast<int>(reader.integer("lanes", 1, 64));
  pod.port = reader.rate("port_gb_s");
  pod.memory = reader.rate("memory_gb_s");
  pod.block = static_cast<std::uint32_t>(reader.integer("block_bytes", 16, 1 << 20));
  pod.jitter = reader.time("jitter_ns");
  read_tiers(reader, pod);
  pod.lane = read_lane(reader.inner("lane"));
  reader.finish();
  return pod;
}

}  // namespace ubep::sim
