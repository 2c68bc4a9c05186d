#include "bench/rivals/ways.hpp"

#include <fmt/format.h>

#include "bench/rivals/direct.hpp"
#include "bench/rivals/floor.hpp"
#include "bench/rivals/gather.hpp"
#include "bench/rivals/packages.hpp"
#include "bench/rivals/ubep_way.hpp"

namespace ubep::rivals {
namespace {

using Ways = std::vector<NamedWay>;

constexpr Layout kRank = Layout::rank_major;
constexpr Layout kExpert = Layout::expert_major;

void add_ubep(Ways& ways, const Group& group, const Shape& shape, bool fixed_choices) {
  const auto add = [&](const std::string& name, const std::shared_ptr<Communicator>& comm,
                       const UbepChoice& choice, const std::string& text) {
    ways.push_back({{name, Kind::ubep, choice.layout, text},
                    std::make_unique<UbepWay>(group, shape, comm, choice)});
  };
  const auto chosen = make_communicator(group, shape, Store::automatic);
  add("ubep", chosen, {kRank}, "rank_major, all chosen by the library, activations in input()");
  add("ubep drop-in", chosen, {.layout = kRank, .in_input = false},
      "the same with activations in a tensor of the caller's");
  add("ubep expert_major", chosen, {kExpert}, "expert_major, all chosen by the library");
  if (group.spans_hosts()) {
    add("ubep push", chosen, {kRank, Path::push}, "rank_major, a row to each rank");
    return;
  }
  if (!fixed_choices) return;
  for (const Store store : {Store::near, Store::far}) {
    const auto comm = make_communicator(group, shape, store);
    for (const Path path : {Path::read, Path::pull, Path::push}) {
      add(fmt::format("ubep {} {}", ubep::name(path), ubep::name(store)), comm, {kRank, path},
          "rank_major, as named");
      if (path == Path::read) continue;
      add(fmt::format("ubep expert_major {} {}", ubep::name(path), ubep::name(store)), comm,
          {kExpert, path}, "expert_major, as named");
    }
  }
}

void add_gather(Ways& ways, Group& group, const Shape& shape) {
  const auto add = [&](const char* name, GatherStores stores, bool all_reduce, const char* text) {
    ways.push_back({{name, Kind::gather, kRank, text},
                    std::make_unique<GatherWay>(group, shape, stores, all_reduce)});
  };
  add("agrs", GatherStores::streamed, false,
      "all-gather + reduce-scatter, rows and finished sums streamed");
  add("agrs plain", GatherStores::plain, false, "the same with plain stores");
  add("agrs streamed sums", GatherStores::streamed_sums, false,
      "the same, sums streamed as they are made");
  add("agrs in place", GatherStores::in_place, false,
      "activations written into the buffer, rows read there: no gathered tensor");
  add("agrs in place streamed", GatherStores::in_place_streamed, false,
      "rows and sums streamed, rows read in the buffer");
  add("all-reduce", GatherStores::streamed, true, "all-gather, all-reduce of all tokens, slice");
}

void add_direct(Ways& ways, Group& group, const Shape& shape) {
  const auto add = [&](const char* name, const DirectChoice& choice, const char* text) {
    ways.push_back(
        {{name, Kind::direct, kExpert, text}, std::make_unique<DirectWay>(group, shape, choice)});
  };
  add("direct", {}, "plain stores into the owners' windows");
  add("direct streamed", {.rows = Store::far}, "streamed rows");
  add("direct streamed both", {.rows = Store::far, .streamed_outputs = true},
      "streamed rows, and outputs");
  add("direct pull", {.pull = true}, "owners copy rows out of shared activations");
  add("direct pull streamed", {.pull = true, .rows = Store::far, .streamed_outputs = true},
      "the same, activations and outputs streamed into shared memory");
}

void add_floors(Ways& ways, const Group& group, const Shape& shape) {
  for (const Layout layout : {kRank, kExpert}) {
    for (const Store store : {Store::near, Store::far}) {
      ways.push_back(
          {{fmt::format("floor {}{}", ubep::name(layout), store == Store::far ? " streamed" : ""),
            Kind::floor, layout, "private copies and sums, no second rank"},
           std::make_unique<FloorWay>(group, shape, layout, store)});
    }
  }
}

}  // namespace

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::ubep:
      return "ubep";
    case Kind::gather:
      return "gather";
    case Kind::window:
      return "window";
    case Kind::messages:
      return "messages";
    case Kind::direct:
      return "direct";
    case Kind::floor:
      return "floor";
  }
  return "";
}

std::vector<NamedWay> make_ways(Group& group, const Shape& shape, bool fixed_choices) {
  Ways ways;
  add_ubep(ways, group, shape, fixed_choices);
  if (group.spans_hosts()) {
    add_packages(ways, group, shape);
    return ways;
  }
  add_gather(ways, group, shape);
  add_direct(ways, group, shape);
  add_packages(ways, group, shape);
  add_floors(ways, group, shape);
  return ways;
}

std::size_t shared_bytes(const Shape& shape) {
  constexpr std::size_t kDirectWays = 5;
  constexpr std::size_t kGatherWays = 6;
  const auto ranks = static_cast<std::size_t>(shape.ranks());
  const std::size_t gather = 2 * ranks * (static_cast<std::size_t>(shape.total_tokens()) + 1) * 2 *
                             (shape.row_bytes() + 4096);
  return kDirectWays * ranks * DirectWay::area_bytes(shape) + kGatherWays * gather +
         (std::size_t{64} << 20);
}

}  // namespace ubep::rivals
