#include "simulation/setup.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "api/checks.hpp"
#include "protocol/protocols.hpp"
#include "protocol/segment_layout.hpp"
#include "protocol/sentinel.hpp"
#include "support/random.hpp"

namespace ubep::test {
namespace {

using sim::kNanosecond;
using sim::Time;

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr int kMostElements = 600;  // of one rank's tokens
constexpr int kMostCalls = 6000;    // of the fabric, until something befalls a rank

Case draw_calls(std::uint64_t seed, bool mapped) {
  Case c = make_case(seed, {.max_ranks = 4,
                            .max_operations = 8,
                            .max_elements = kMostElements,
                            .draws_protocol = false});
  for (Operation& op : c.operations) {
    for (LocalChoice& local : op.local) {
      const bool in_place =
          local.options.path == Path::read || local.options.path == Path::automatic;
      if (in_place && !mapped) local.options.path = Path::pull;
      local.options.mapped_view = false;
    }
  }
  return c;
}

// Two overlapping pushes of three ranks, and two more in the same slots; rank 1 will spoil what it
// tells rank 2 about the second. So rank 2 fails while a lane of its own may still be pushing rows
// of the first, and the others go on.
Case draw_failing_push(std::uint64_t seed) {
  Random random(seed, 31, 2);
  Case c;
  c.seed = seed;
  c.num_ranks = 3;
  c.num_handles = 4;
  c.options = {.num_experts = 3, .max_tokens = 12, .max_hidden = 16, .max_topk = 2, .slots = 2};
  c.stores.assign(3, random.one_in(2) ? Store::near : Store::far);
  for (int i = 0; i < 6; ++i) {
    Operation op;
    op.handle = i % 4;
    op.problem = {.num_experts = 3,
                  .hidden = 16,
                  .topk = 2,
                  .layout = Layout::expert_major,
                  .function = ExpertFunction::scaled,
                  .ranks = {}};
    op.problem.ranks.resize(3);
    const auto is_small = [](const RankInput& input) { return input.tokens < 4; };
    do {
      fill_inputs(op.problem, c.options.max_tokens, random);
    } while (std::any_of(op.problem.ranks.begin(), op.problem.ranks.end(), is_small));
    LocalChoice local;
    local.options = {.layout = Layout::expert_major, .path = Path::push};
    op.local.assign(3, local);
    c.operations.push_back(std::move(op));
  }
  for (int i = 0; i < 6; i += 2) {
    c.events.insert(c.events.end(), {{true, i}, {true, i + 1}, {false, i}, {false, i + 1}});
  }
  return c;
}

void halve_tokens(Case& c) {
  for (Operation& op : c.operations) {
    for (RankInput& input : op.problem.ranks) {
      if (input.tokens == 0) continue;
      const auto before = index(input.tokens);
      input.tokens /= 2;
      const auto after = index(input.tokens);
      input.x.resize(input.x.size() / before * after);
      input.topk_idx.resize(input.topk_idx.size() / before * after);
      input.topk_weights.resize(input.topk_weights.size() / before * after);
    }
  }
}

// With what repeats them.
void drop_operations(Case& c, std::vector<int> dropped) {
  for (int i = 0; i < static_cast<int>(c.operations.size()); ++i) {
    const int origin = c.operations[index(i)].origin;
    if (std::find(dropped.begin(), dropped.end(), origin) != dropped.end()) dropped.push_back(i);
  }
  std::erase_if(c.events, [&](const Event& event) {
    return std::find(dropped.begin(), dropped.end(), event.operation) != dropped.end();
  });
}

sim::Pod draw_pod(const Case& c, bool has_links, Random& random) {
  sim::Pod pod;
  pod.ranks = c.num_ranks;
  const Time far = random.pick<Time>({0, 10, 100, 500}) * kNanosecond;
  if (c.num_ranks > 2 && random.one_in(2)) {
    pod.tiers.push_back({"near", 2, far / 4, 0});
    const std::uint64_t uplink = has_links && random.one_in(2) ? 1'000'000'000 : 0;
    pod.tiers.push_back({"far", (c.num_ranks + 1) / 2 * 2, far, uplink});
  } else {
    pod.tiers.push_back({"all", c.num_ranks, far, 0});
  }
  pod.port = random.pick<std::uint64_t>({200'000'000, 10'000'000'000});
  pod.memory = random.pick<std::uint64_t>({200'000'000, 10'000'000'000});
  pod.block = random.pick<std::uint32_t>({16, 64, 512});
  pod.jitter = random.pick<Time>({0, 50, 1000}) * kNanosecond;
  pod.lane.issue = static_cast<Time>(random.between(1, 50)) * kNanosecond;
  pod.lane.poll = static_cast<Time>(random.between(1, 50)) * kNanosecond;
  pod.lane.fence = static_cast<Time>(random.between(0, 50)) * kNanosecond;
  pod.lane.put = pod.lane.copy = pod.lane.reduce = pod.lane.plan = 10'000'000'000;
  pod.lane.window = random.pick<std::uint64_t>({0, 64, 4096});
  return pod;
}

void size_memory(const GroupConfig& config, sim::MemoryOptions& memory) {
  for (int r = 0; r < config.size; ++r) {
    memory.segment_bytes.push_back(SegmentLayout(config, r).bytes());
    if (config.push) memory.inbox_bytes.push_back(SegmentLayout(config, r).inbox_bytes());
  }
}

// Several lanes with roles, blocks for pushed rows, outputs that come back.
void share_work(Setup& setup, Random& random) {
  CommunicatorOptions& options = setup.calls.options;
  if (setup.world.lanes > 1) setup.world.lanes = random.between(2, 6);
  options.stage_pushed = options.push && random.one_in(2);
  setup.returns = options.push && !setup.world.mapped && random.one_in(2);
  for (int r = 0; r < setup.calls.num_ranks; ++r) {
    Setup::Lanes lanes;
    lanes.order = random.one_in(2) ? SendOrder::scheduled : SendOrder::by_token;
    const int n = setup.world.lanes;
    if (n > 1 && random.one_in(2)) {
      lanes.roles.count = random.between(1, n - 1);
      lanes.roles.send = random.between(1, n - lanes.roles.count);
      lanes.roles.receive = n - lanes.roles.count - lanes.roles.send;
    }
    setup.lanes.push_back(lanes);
  }
}

// Ranks on several hosts, mapped inside of each.
void draw_hosts(Setup& setup, Random& random) {
  std::vector<int> host_of(1, 0);
  while (static_cast<int>(host_of.size()) < setup.calls.num_ranks) {
    host_of.push_back(host_of.back() + (random.one_in(2) ? 1 : 0));
  }
  spread_over_hosts(setup.calls, host_of, random);
  setup.calls.options.stage_pushed = random.one_in(2);
  setup.world.mapped = false;
  setup.world.hosts = HostMap(host_of);
  setup.returns = true;
}

// Whole rows of what says that nothing has come, or a word of it.
void scatter_sentinels(Setup& setup, Random& random) {
  for (Operation& op : setup.calls.operations) {
    if (random.one_in(2)) continue;
    const std::uint64_t bytes = index(op.problem.hidden) * size_of(op.problem.dtype);
    for (RankInput& input : op.problem.ranks) {
      for (std::size_t at = 0; at + 8 <= input.x.size(); at += 8) {
        if (at % bytes % 8 != 0 || at % bytes + 8 > bytes || random.one_in(3)) continue;
        const std::uint64_t word = Sentinel::word(random.below(setup.calls.options.slots));
        std::memcpy(input.x.data() + at, &word, 8);
      }
    }
  }
}

// More pushing than the seed drew. bsp, whose flags are its own, where it stays.
void push_more(Case& c, bool keeps_bsp, Random& random) {
  c.options.push = true;
  for (Operation& op : c.operations) {
    if (op.origin >= 0) continue;
    op.bsp = op.bsp && keeps_bsp;
    for (LocalChoice& local : op.local) {
      if (local.options.path == Path::bsp && !keeps_bsp) local.options.path = Path::push;
      if (local.options.path == Path::pull && !random.one_in(4)) local.options.path = Path::push;
    }
  }
  for (Operation& op : c.operations) {
    if (op.origin < 0) continue;
    op.bsp = c.operations[index(op.origin)].bsp;
    for (std::size_t r = 0; r < op.local.size(); ++r) {
      op.local[r].options = c.operations[index(op.origin)].local[r].options;
    }
  }
}

// One that the memory carries; or the one asked for, and memory that does.
void choose_protocol(Setup& setup, const Cuts& cuts, Random& random) {
  CommunicatorOptions& options = setup.calls.options;
  sim::MemoryOptions& memory = setup.world.memory;
  const bool ordered = !memory.weak || memory.in_order;
  if (cuts.protocol != Protocol::automatic) {
    push_more(setup.calls, !cuts.loses_signal, random);
    options.protocol = cuts.protocol;
    options.checksum_rows = cuts.checksum_rows;
    const FabricFacts facts{.atomic_bytes = memory.unit, .ordered_stores = ordered};
    const RowProtocol& protocol = find_protocol(cuts.protocol);
    const bool can_lie = cuts.claims_unit != 0;
    if (!can_lie && !protocol.refusal(facts).empty()) {
      memory.unit = static_cast<std::uint32_t>(protocol.row_grid());
    }
  } else if (options.push) {
    std::vector<Protocol> carried;
    for (const RowProtocol* p : all_protocols()) {
      const FabricFacts facts{.atomic_bytes = memory.unit, .ordered_stores = ordered};
      if (p->refusal(facts).empty()) carried.push_back(p->id());
    }
    options.protocol = random.pick(carried);
    if (options.protocol == Protocol::checksum) options.checksum_rows = random.below(5);
  }
  if (options.protocol == Protocol::sentinel) scatter_sentinels(setup, random);
  if (random.one_in(2)) setup.scrub_every = static_cast<std::uint64_t>(random.between(1, 4));
  memory.claims_unit = cuts.claims_unit;
  memory.loses_signal = cuts.loses_signal;
}

sim::MemoryOptions draw_memory(Random& random) {
  sim::MemoryOptions memory;
  memory.weak = !random.one_in(4);
  memory.unit = random.pick<std::uint32_t>({8, 16, 64, 512, 4096});
  memory.in_order = random.one_in(4);
  memory.delay = random.pick<Time>({20, 300, 3000, 30000}) * kNanosecond;
  return memory;
}

std::vector<sim::Fate> draw_fates(int ranks, bool dying, bool errs, Random& random) {
  std::vector<sim::Fate> fates;
  const auto some_call = [&] {
    const int most = random.pick<int>({20, 200, 1000, kMostCalls});
    return static_cast<std::uint64_t>(random.between(1, most));
  };
  if (dying) {
    const int deaths = random.one_in(4) ? 2 : 1;
    for (int i = 0; i < deaths; ++i) fates.push_back({random.below(ranks), some_call(), true, 0});
  }
  for (int i = random.below(errs ? 12 : 4); i > 0; --i) {
    const Time stall = random.pick<Time>({1000, 30'000, 300'000, 3'000'000}) * kNanosecond;
    fates.push_back({random.below(ranks), some_call(), false, stall, errs || random.one_in(2)});
  }
  return fates;
}

// Rank 2 notices for sure, and has a lane that stands still between two rows.
void stop_in_push(Setup& setup, Random& random) {
  const auto put = static_cast<std::uint64_t>(random.between(1, 12));
  const Time stall = static_cast<Time>(random.between(100, 2000)) * 1000 * kNanosecond;
  setup.world.fates = {{2, put, false, stall, true, true}};
  setup.world.memory.weak = false;
  setup.world.pod.tiers.back().latency = 100 * kNanosecond;
  setup.tile_bytes = 64;
  setup.start_bytes = 0;
}

// An operation whose difference shows: a release only where others combine.
Culprit draw_culprit(const Case& c, Random& random) {
  Culprit culprit;
  culprit.rank = random.below(c.num_ranks);
  culprit.operation = random.below(static_cast<int>(c.operations.size()));
  const Operation& op = c.operations[index(culprit.operation)];
  std::vector<Alteration> possible;
  if (op.cached < 0) possible = {Alteration::dtype, Alteration::layout};
  if (op.cached < 0 && op.problem.layout != Layout::rank_major) {
    possible.push_back(Alteration::reduction);
  }
  if (!op.release) possible.push_back(Alteration::release);
  // Twice as often: only here do others go on without the rank that noticed it.
  if (op.cached < 0) possible.insert(possible.end(), 3, Alteration::record);
  if (!possible.empty() && c.num_ranks > 1) culprit.alteration = random.pick(possible);
  return culprit;
}

}  // namespace

Setup make_setup(std::uint64_t seed, const Cuts& cuts, bool loses_release) {
  Setup setup;
  Random kind(seed, 31, 0);
  setup.world.mapped = !kind.one_in(4);
  const int group = kind.below(10);  // 0-5: all goes well; 6-8: deaths; 9: a caller's error
  const bool failing_push = seed % 64 == 9;
  setup.calls = failing_push ? draw_failing_push(seed) : draw_calls(seed, setup.world.mapped);
  setup.most_counts = kind.one_in(2) ? 0 : 16 * 1024;
  setup.first_epoch = kind.one_in(4) ? 0xffff'fffe : 0;
  if (group == 9) setup.culprit = draw_culprit(setup.calls, kind);
  if (failing_push) setup.culprit = {Alteration::record, 1, 1};
  drop_operations(setup.calls, cuts.dropped);
  for (int i = 0; i < cuts.halvings; ++i) halve_tokens(setup.calls);

  Random random(cuts.schedule == 0 ? seed : cuts.schedule, 31, 1);
  sim::WorldOptions& world = setup.world;
  world.ranks = setup.calls.num_ranks;
  // A rank that fails must not be done with by its peers while one of its lanes is still at work.
  const bool errs = setup.culprit.alteration != Alteration::none;
  world.lanes = errs ? random.between(2, 3) : random.pick<int>({1, 1, 2, 3});
  world.has_links = random.one_in(3);
  world.pod = draw_pod(setup.calls, world.has_links, random);
  world.memory = draw_memory(random);
  world.hesitation = random.pick<Time>({1, 30, 300, 3000}) * kNanosecond;
  world.fates = draw_fates(world.ranks, !failing_push && group >= 6 && group <= 8, errs, random);
  setup.tile_bytes = random.pick<std::uint64_t>({64, 256, 1024, 128 * 1024});
  setup.start_bytes = random.pick<std::uint64_t>({0, 256, 1 << 20, 1 << 20});
  if (failing_push) stop_in_push(setup, random);
  world.seed = random.next();
  world.memory.seed = random.next();
  const Time late = random.pick<Time>({0, 100, 20'000}) * kNanosecond;
  for (int r = 0; r < world.ranks; ++r) {
    setup.starts.push_back(late == 0 ? 0 : random.next() % late);
  }
  world.memory.loses_release = loses_release;
  if (cuts.no_fates) world.fates.clear();
  if (cuts.one_lane) world.lanes = 1;
  if (cuts.strong) world.memory.weak = false;
  // A quarter of the seeds, and half of those whose lanes share the work; not those of the recorded
  // histories.
  Random protocol(seed, 31, 3);
  if (seed % 4 == 3 || seed % 8 == 6 || cuts.protocol != Protocol::automatic) {
    choose_protocol(setup, cuts, protocol);
  }
  if (seed % 4 == 2) {
    Random lanes(seed, 31, 4);
    share_work(setup, lanes);
  }
  if ((seed % 64 == 63 || cuts.absent) && world.ranks > 1 && !errs && !failing_push) {
    Random membership(seed, 31, 5);
    setup.absent = membership.below(world.ranks);
    std::erase_if(world.fates, [&](const auto& fate) { return fate.rank == setup.absent; });
  }
  const bool may_spread = cuts.protocol == Protocol::automatic && !errs && !failing_push;
  if ((seed % 16 == 5 || cuts.hosts) && world.ranks > 1 && may_spread) {
    Random hosts(seed, 31, 6);
    draw_hosts(setup, hosts);
  }
  size_memory(group_of(setup), world.memory);
  if (cuts.prompt) world.hesitation = world.pod.jitter = 0;
  return setup;
}

GroupConfig group_of(const Setup& setup) {
  GroupConfig config = make_config(setup.calls.options, setup.calls.num_ranks);
  config.returns = setup.returns;
  config.relay = !setup.world.hosts.empty();
  return config;
}

bool is_relayed(const Setup& setup, const LocalChoice& local) {
  const Path path = local.options.path;
  return !setup.world.hosts.empty() && path != Path::push && path != Path::pull;
}

std::string Cuts::arguments() const {
  std::string text;
  if (schedule != 0) text += fmt::format(" --schedule {}", schedule);
  if (!dropped.empty()) text += fmt::format(" --drop {}", fmt::join(dropped, ","));
  if (halvings != 0) text += fmt::format(" --halvings {}", halvings);
  if (no_fates) text += " --no-fates";
  if (absent) text += " --absent";
  if (hosts) text += " --hosts";
  if (one_lane) text += " --one-lane";
  if (strong) text += " --strong";
  if (prompt) text += " --prompt";
  if (protocol != Protocol::automatic) {
    text += fmt::format(" --protocol {}", name(protocol));
    if (checksum_rows != 0) text += fmt::format(":{}", checksum_rows);
  }
  if (loses_signal) text += " --loses-signal";
  if (claims_unit != 0) text += fmt::format(" --claims-unit {}", claims_unit);
  return text;
}

std::string describe(const Setup& setup) {
  const sim::WorldOptions& w = setup.world;
  std::string text = fmt::format(
      "{}; {} calls to start or end, {} lanes, {}, {}, {}, hesitation {} ns", describe(setup.calls),
      setup.calls.events.size(), w.lanes, w.mapped ? "mapped" : "not mapped",
      w.memory.weak ? fmt::format("weak memory in units of {}, {} ns late", w.memory.unit,
                                  w.memory.delay / kNanosecond)
                    : "strong memory",
      w.has_links ? "links" : "no links", w.hesitation / kNanosecond);
  if (setup.calls.options.protocol != Protocol::automatic) {
    text += fmt::format("; protocol {}", name(setup.calls.options.protocol));
    if (setup.calls.options.checksum_rows != 0) {
      text += fmt::format(":{}", setup.calls.options.checksum_rows);
    }
  }
  if (!setup.lanes.empty()) {
    const Roles& roles = setup.lanes[0].roles;
    text += fmt::format("; roles {}:{}:{}{}{}", roles.count, roles.send, roles.receive,
                        setup.returns ? ", outputs come back" : "",
                        setup.calls.options.stage_pushed ? ", staged" : "");
  }
  if (!w.hosts.empty()) {
    text += "; hosts begin with ranks";
    for (int h = 0; h < w.hosts.num_hosts(); ++h) text += fmt::format(" {}", w.hosts.first(h));
  }
  if (setup.absent >= 0) text += fmt::format("; rank {} is absent", setup.absent);
  for (const sim::Fate& fate : w.fates) {
    text +=
        fmt::format("; rank {} {} at call {}", fate.rank, fate.dies ? "dies" : "stalls", fate.call);
  }
  if (setup.culprit.alteration != Alteration::none) {
    text += fmt::format("; rank {} differs in operation {}", setup.culprit.rank,
                        setup.culprit.operation);
  }
  return text;
}

}  // namespace ubep::test
