#include "sim/pod.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/group_config.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

using Json = nlohmann::json;

// One object of the file, and where in the text it begins.
class Reader {
 public:
  Reader(const std::string& path, const std::string& text, const Json& object, std::size_t begin,
         std::string name)
      : path_(path), text_(text), object_(object), begin_(begin), name_(std::move(name)) {
    if (!object.is_object()) fail("", "expected an object");
  }

  // The n-th object under `key`.
  Reader inner(const std::string& key, const Json& object, std::size_t number) const {
    std::size_t at = place_of(key);
    for (std::size_t i = 0; i <= number && at != std::string::npos; ++i) {
      at = text_.find('{', at + 1);
    }
    return {path_, text_, object, at == std::string::npos ? begin_ : at, name_ + key + "."};
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
  double number(const std::string& key, double low, double high, double otherwise) {
    known_.insert(key);
    return object_.contains(key) ? number(key, low, high) : otherwise;
  }
  int integer(const std::string& key, int low, int high) {
    const double value = number(key, low, high);
    if (value != static_cast<int>(value))
      fail(key, fmt::format("is {}, expected an integer", value));
    return static_cast<int>(value);
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
  std::uint64_t optional_rate(const std::string& key) {
    return static_cast<std::uint64_t>(number(key, 0, 1e6, 0) * 1e9);
  }
  Time time(const std::string& key) {
    return static_cast<Time>(number(key, 0, 1e9) * double{kNanosecond});
  }

  // Every key must have been asked for.
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (!known_.contains(key)) fail(key, "is not a key of a pod");
    }
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    const std::size_t at = key.empty() ? begin_ : place_of(key);
    const auto end =
        text_.begin() + static_cast<std::ptrdiff_t>(at == std::string::npos ? begin_ : at);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}:{}: {}{} {}", path_, 1 + std::count(text_.begin(), end, '\n'),
                            name_, key, what));
  }

 private:
  std::size_t place_of(const std::string& key) const { return text_.find('"' + key + '"', begin_); }

  const std::string& path_;
  const std::string& text_;
  const Json& object_;
  std::size_t begin_;
  std::string name_;
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
  costs.window = static_cast<std::uint64_t>(reader.number("window_bytes", 0, 1e12, 0));
  reader.finish();
  return costs;
}

Tier read_tier(Reader reader) {
  Tier tier;
  tier.name = reader.text("name");
  tier.ranks = reader.integer("ranks", 1, kMostRanks);
  tier.latency = reader.time("latency_ns");
  tier.uplink = reader.optional_rate("uplink_gb_s");
  reader.finish();
  return tier;
}

void read_tiers(Reader& reader, Pod& pod) {
  const Json& tiers = reader.need("tiers");
  if (!tiers.is_array() || tiers.empty()) reader.fail("tiers", "expected a list of tiers");
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    Reader inner = reader.inner("tiers", tiers[i], i);
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
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::invalid_argument, path + ": cannot be read");
  std::ostringstream buffer;
  buffer << file.rdbuf();
  const std::string text = buffer.str();
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", path, error.what()));
  }
  Reader reader(path, text, json, 0, "");
  Pod pod;
  pod.name = reader.text("name");
  pod.ranks = reader.integer("ranks", 1, kMostRanks);
  pod.lanes = reader.integer("lanes", 1, 64);
  pod.port = reader.rate("port_gb_s");
  pod.memory = reader.rate("memory_gb_s");
  pod.block = static_cast<std::uint32_t>(reader.integer("block_bytes", 16, 1 << 20));
  pod.jitter = reader.time("jitter_ns");
  read_tiers(reader, pod);
  pod.lane = read_lane(reader.inner("lane", reader.need("lane"), 0));
  reader.finish();
  return pod;
}

}  // namespace ubep::sim
