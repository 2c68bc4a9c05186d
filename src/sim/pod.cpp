#include "sim/pod.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/group_config.hpp"
#include "sim/built_in_pods.hpp"
#include "sim/json_reader.hpp"
#include "sim/pod_variants.hpp"
#include "ubep/status.hpp"

namespace ubep::sim {
namespace {

constexpr std::int64_t kMostWindow = 1'000'000'000'000;
constexpr std::int64_t kMostInFlight = 1 << 20;

struct TimeKey {
  const char* key;
  Time LaneCosts::*field;
  bool needed;
};
constexpr TimeKey kTimes[] = {
    {"issue_ns", &LaneCosts::issue, true},
    {"poll_ns", &LaneCosts::poll, true},
    {"fence_ns", &LaneCosts::fence, true},
    {"barrier_ns", &LaneCosts::barrier, false},
    {"row_ns", &LaneCosts::row, false},
    {"combine_row_ns", &LaneCosts::combine_row, false},
    {"receive_row_ns", &LaneCosts::receive_row, false},
    {"read_ns", &LaneCosts::read_first, false},
};
struct RateKey {
  const char* key;
  std::uint64_t LaneCosts::*field;
  bool needed = true;
};
constexpr RateKey kRates[] = {
    {"put_gb_s", &LaneCosts::put},          {"copy_gb_s", &LaneCosts::copy},
    {"reduce_gb_s", &LaneCosts::reduce},    {"plan_gb_s", &LaneCosts::plan},
    {"read_gb_s", &LaneCosts::read, false}, {"share_gb_s", &LaneCosts::share, false},
};

// overrides: of costs that are there already, so none is needed.
void read_lane(JsonReader& reader, bool overrides, LaneCosts& costs) {
  for (const TimeKey& k : kTimes) {
    if (reader.optional(k.key) || (k.needed && !overrides)) costs.*k.field = reader.time(k.key);
  }
  for (const RateKey& k : kRates) {
    if (reader.optional(k.key) || (k.needed && !overrides)) costs.*k.field = reader.rate(k.key);
  }
  if (reader.optional("signal_ns")) costs.signal = reader.time("signal_ns");
  if (reader.optional("window_bytes")) {
    costs.window = static_cast<std::uint64_t>(reader.integer("window_bytes", 0, kMostWindow));
  }
  if (reader.optional("in_flight")) {
    costs.in_flight = static_cast<int>(reader.integer("in_flight", 0, kMostInFlight));
  }
}

void read_launch(JsonReader& reader, LaneCosts& costs) {
  if (reader.optional("launch_ns")) {
    costs.launch = costs.combine_launch = reader.time("launch_ns");
  }
  if (reader.optional("combine_launch_ns")) costs.combine_launch = reader.time("combine_launch_ns");
}

Tier read_tier(JsonReader reader, std::uint64_t port) {
  Tier tier;
  tier.name = reader.text("name");
  tier.ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  tier.latency = reader.time("latency_ns");
  tier.uplink = reader.optional_rate("uplink_gb_s");
  if (reader.optional("rate_gb_s")) {
    tier.rate = reader.rate("rate_gb_s");
    if (tier.rate > port) {
      reader.fail("rate_gb_s", fmt::format("is {}, more than port_gb_s, {}",
                                           static_cast<double>(tier.rate) * 1e-9,
                                           static_cast<double>(port) * 1e-9));
    }
  }
  reader.finish("a pod");
  return tier;
}

void read_tiers(JsonReader& reader, Pod& pod) {
  const Json& tiers = reader.need("tiers");
  if (!tiers.is_array() || tiers.empty()) reader.fail("tiers", "expected a list of tiers");
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    JsonReader inner = reader.inner("tiers", i);
    pod.tiers.push_back(read_tier(inner, pod.port));
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

Protocol read_protocol(JsonReader& reader) {
  const std::string text = reader.text("protocol");
  std::vector<std::string> names;
  for (int p = static_cast<int>(Protocol::put_with_signal); p <= static_cast<int>(Protocol::fence);
       ++p) {
    if (text == name(static_cast<Protocol>(p))) return static_cast<Protocol>(p);
    names.emplace_back(name(static_cast<Protocol>(p)));
  }
  reader.fail("protocol", fmt::format("is {}, expected one of {}", text, fmt::join(names, ", ")));
}

// Costs on mapped memory that are others in a combine. Those of bsp begin with the ones of all.
void read_combine(JsonReader& reader, Pod& pod) {
  pod.combine = pod.lane;
  pod.bsp_combine = pod.bsp.value_or(pod.lane);
  const auto read = [&](const char* key, LaneCosts& costs) {
    if (!reader.optional(key)) return;
    JsonReader combine = reader.inner(key);
    read_lane(combine, true, costs);
    combine.finish("a pod");
  };
  read("combine", *pod.combine);
  read("combine", *pod.bsp_combine);
  read("bsp_combine", *pod.bsp_combine);
}

void read_mapped(JsonReader& reader, Pod& pod) {
  const std::string text = reader.text("mapped");
  if (text != "near" && text != "far") {
    reader.fail("mapped", fmt::format("is {}, expected near or far", text));
  }
  pod.mapped = text == "near" ? Store::near : Store::far;
  if (pod.jitter != 0) reader.fail("jitter_ns", "has no meaning with mapped");
  for (const Tier& tier : pod.tiers) {
    if (tier.uplink != 0 || tier.rate != 0) {
      reader.fail("tiers", fmt::format("have rates ({}), mapped memory has no links", tier.name));
    }
  }
  if (pod.lane.read == 0) reader.fail("lane", "has no read_gb_s, mapped memory needs it");
}

// Of keys that say something of mapped memory only.
void refuse_unmapped(JsonReader& reader, const Pod& pod) {
  for (const char* key : {"combine", "bsp_combine"}) {
    if (reader.optional(key)) reader.fail(key, "has no meaning without mapped");
  }
  for (const LaneCosts* costs : {&pod.lane, pod.bsp ? &*pod.bsp : &pod.lane}) {
    if (costs->read == 0 && costs->share == 0 && costs->read_first == 0) continue;
    reader.fail(costs == &pod.lane ? "lane" : "bsp",
                "has read_gb_s, read_ns or share_gb_s, which have no meaning without mapped");
  }
}

// Whatever the file says but for its variants.
Pod read_base(const JsonFile& file) {
  JsonReader reader(file);
  Pod pod;
  pod.name = reader.text("name");
  if (reader.optional("source")) pod.source = reader.text("source");
  if (reader.optional("projection")) pod.projection = reader.boolean("projection");
  pod.ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  pod.lanes = static_cast<int>(reader.integer("lanes", 1, 64));
  pod.port = reader.rate("port_gb_s");
  pod.memory = reader.rate("memory_gb_s");
  pod.block = static_cast<std::uint32_t>(reader.integer("block_bytes", 16, 1 << 20));
  pod.jitter = reader.time("jitter_ns");
  if (reader.optional("protocol")) pod.protocol = read_protocol(reader);
  read_tiers(reader, pod);
  read_launch(reader, pod.lane);
  JsonReader lane = reader.inner("lane");
  read_lane(lane, false, pod.lane);
  lane.finish("a pod");
  if (reader.optional("bsp")) {
    JsonReader bsp = reader.inner("bsp");
    pod.bsp = pod.lane;
    read_lane(bsp, true, *pod.bsp);
    read_launch(bsp, *pod.bsp);
    bsp.finish("a pod");
  }
  if (reader.optional("mapped")) {
    read_mapped(reader, pod);
    read_combine(reader, pod);
  } else {
    refuse_unmapped(reader, pod);
  }
  (void)reader.optional("variants");
  reader.finish("a pod");
  return pod;
}

// One that is built in, or from a file.
JsonFile find_file(const std::string& name_or_path) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json")) {
    return read_json(name_or_path);
  }
  for (const BuiltInPod& pod : built_in_pods()) {
    if (pod.name == name_or_path) {
      return parse_json("built-in pod " + name_or_path, std::string(pod.text));
    }
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is not one of the pods that are built in: {}; the name of a file "
                          "has a / or ends in .json",
                          name_or_path, fmt::join(pod_names(), ", ")));
}

std::vector<PodVariant> read_all(const JsonFile& file) {
  const Pod base = read_base(file);
  std::vector<PodVariant> all = read_variants(file, read_base);
  if (all.empty()) all.push_back({.name = "base", .weight = 1, .pod = base});
  return all;
}

}  // namespace

Time time_of(std::uint64_t bytes, std::uint64_t rate) {
  if (rate == 0) return 0;
  constexpr std::uint64_t kPicosecondsPerSecond = 1'000'000'000'000;
  if (bytes <= 1ULL << 24) {  // nearly always: half as long as the wide division
    const std::uint64_t exact = bytes * kPicosecondsPerSecond;
    return exact / rate + (exact % rate != 0 ? 1 : 0);
  }
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

Pod read_pod(const JsonFile& file) {
  Pod pod = read_base(file);
  (void)read_variants(file, read_base);  // throws what is wrong with them
  return pod;
}

Pod read_pod(const std::string& name_or_path) { return read_pod(find_file(name_or_path)); }

std::vector<PodVariant> read_pod_variants(const std::string& name_or_path) {
  return read_all(find_file(name_or_path));
}

std::vector<std::string> pod_names() {
  std::vector<std::string> names;
  for (const BuiltInPod& pod : built_in_pods()) names.emplace_back(pod.name);
  return names;
}

}  // namespace ubep::sim
