#include "sim/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/invariant.hpp"
#include "base/math.hpp"
#include "fabric/concept.hpp"
#include "sim/world.hpp"

namespace ubep::sim {

static_assert(Fabric<SimFabric>);

namespace {

constexpr std::uint64_t kClaimUnit = 4;

// What is put into an inbox: rows, and words that tell of some.
bool is_row(Range range) { return range.bytes > sizeof(std::uint64_t); }

}  // namespace

SimFabric::SimFabric(World& world, int rank) : world_(world), rank_(rank) {
  const WorldOptions& options = world.options();
  facts_.mapped = options.mapped;
  facts_.hosts = options.hosts;
  facts_.moves_rows = options.memory.moves_rows;
  facts_.ordered_stores = !options.memory.weak || options.memory.in_order;
  const LaneCosts& lane = options.pod.lane;
  const auto per_byte = [](std::uint64_t rate) {
    return rate == 0 ? 0 : 1e9 / static_cast<double>(rate);
  };
  const auto ns = [](Time time) { return static_cast<double>(time) / double{kNanosecond}; };
  facts_.lane = {.count_ns = 2 * ns(lane.poll) + 3 * ns(lane.flag()),
                 .issue_ns = ns(lane.issue + lane.row),
                 .send_ns = per_byte(lane.put),
                 .receive_ns = per_byte(lane.copy)};
  for (int r = 0; r < options.ranks; ++r) {
    facts_.tiers.push_back(
        static_cast<std::uint16_t>(&options.pod.tier(rank, r) - options.pod.tiers.data()));
  }
  facts_.atomic_bytes =
      options.memory.claims_unit != 0 ? options.memory.claims_unit : options.memory.unit;
  if (!options.memory.weak) return;
  claimed_.resize(options.memory.segment_bytes[static_cast<std::size_t>(rank)] / kClaimUnit);
}

SimFabric::~SimFabric() {
  for (auto& [place, fetch] : fetches_) drop(place, fetch);
}

int SimFabric::size() const { return world_.options().ranks; }

const LaneCosts& SimFabric::costs() const {
  const Pod& pod = world_.options().pod;
  return part_ == Part::combine && pod.combine ? *pod.combine : pod.lane;
}

void SimFabric::begin(Part part) {
  part_ = part;
  read_rows_.clear();
}

// Of mapped memory: what is done for each row beside copying or adding its bytes.
void SimFabric::prepare_rows(std::uint64_t bytes) const {
  const std::uint64_t rows = bytes / world_.options().row_bytes;
  spend(rows * (part_ == Part::dispatch ? costs().row : costs().combine_row));
}

// A peer's bytes where they are. What was read before is in the own caches. Rows are
// read ahead; words beside them are waited for.
void SimFabric::read_in_place(const Place& place) {
  const bool is_row = place.bytes >= world_.options().row_bytes;
  if (is_row && !read_rows_.insert(place).second) return;
  spend((is_row ? 0 : costs().read_first) + time_of(place.bytes, costs().read));
}

// Where nothing is to be spent, that is no call.
void SimFabric::spend(Time cost) const {
  if (cost != 0) world_.spend(cost);
}

void SimFabric::check_rank(int rank, const char* call) const {
  if (rank >= 0 && rank < size()) return;
  broken_invariant(fmt::format("rank {}: {} of rank {}", rank_, call, rank).c_str());
}

void SimFabric::check(std::uint64_t size, Range range, const char* call) const {
  if (range.offset <= size && range.bytes <= size - range.offset) return;
  broken_invariant(fmt::format("rank {}: {} of {} bytes at {}, there are {}", rank_, call,
                               range.bytes, range.offset, size)
                       .c_str());
}

void SimFabric::check_segment(int rank, Range range, const char* call) const {
  check_rank(rank, call);
  check(world_.options().memory.segment_bytes[static_cast<std::size_t>(rank)], range, call);
}

void SimFabric::check_inbox(int rank, Range range, const char* call) const {
  check_rank(rank, call);
  const std::vector<std::uint64_t>& inboxes = world_.options().memory.inbox_bytes;
  check(inboxes.empty() ? 0 : inboxes[static_cast<std::size_t>(rank)], range, call);
}

const std::byte* SimFabric::acquire(int rank, Range range) {
  check_segment(rank, range, "acquire");
  if (maps(rank)) {
    if (rank != rank_ && range.bytes != 0) {
      world_.options().pod.mapped ? read_in_place({rank, range.offset, range.bytes})
                                  : world_.read(rank_, rank, range.bytes);
    }
    world_.memory_.absorb(rank_);
    return world_.memory_.seen(rank_, rank) + range.offset;
  }
  return fetch({rank, range.offset, range.bytes});
}

const std::byte* SimFabric::fetch(const Place& place) {
  const auto [at, is_new] = fetches_.try_emplace(place);
  Fetch& fetch = at->second;
  if (is_new) {
    fetch.number = ++number_;
    if (replicas_.contains(place)) {
      world_.spend(world_.options().pod.lane.poll);
      fetch.arrived = true;
      if (!facts_.moves_rows) return world_.memory_.own(place.rank) + place.offset;
      fetch.copy = GuardedCopies::all().make(place.bytes);
      read(place, fetch);
      return fetch.copy;
    }
    under_way_.emplace(fetch.number, place);
    fetch.read_late = world_.random().one_in(2);
    if (facts_.moves_rows) {
      fetch.copy = GuardedCopies::all().make(place.bytes);
      if (!fetch.read_late) read(place, fetch);
    }
    world_.start_fetch(rank_, place.rank, place.bytes, fetch.number);
  }
  if (!fetch.arrived) return nullptr;
  return fetch.copy != nullptr ? fetch.copy : world_.memory_.own(place.rank) + place.offset;
}

void SimFabric::on_event(std::uint64_t fetch) {
  landed_.push_back(fetch);
  world_.node(rank_).on_event(0);
}

void SimFabric::drop(const Place& place, const Fetch& fetch) {
  if (fetch.copy != nullptr) GuardedCopies::all().drop(fetch.copy, place.bytes);
  under_way_.erase(fetch.number);
}

void SimFabric::read(const Place& place, const Fetch& fetch) {
  world_.memory_.absorb(rank_);
  std::memcpy(fetch.copy, world_.memory_.seen(rank_, place.rank) + place.offset, place.bytes);
}

void SimFabric::release(int rank, Range range) {
  if (maps(rank)) return;
  const auto found = fetches_.find({rank, range.offset, range.bytes});
  if (found == fetches_.end() || !found->second.arrived) {
    broken_invariant(fmt::format("rank {} releases {} bytes at {} of rank {}, not acquired", rank_,
                                 range.bytes, range.offset, rank)
                         .c_str());
  }
  drop(found->first, found->second);
  fetches_.erase(found);
}

void SimFabric::abandon(int rank, Range range) {
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    const Place& place = it->first;
    const bool inside = place.rank == rank && place.offset >= range.offset &&
                        place.offset + place.bytes <= range.offset + range.bytes;
    if (inside) drop(place, it->second);
    it = inside ? fetches_.erase(it) : std::next(it);
  }
}

int SimFabric::progress() {
  if (facts_.mapped) return 0;
  world_.spend(world_.options().pod.lane.poll);
  int done = 0;
  for (const std::uint64_t number : landed_) {
    const auto found = under_way_.find(number);
    if (found == under_way_.end()) continue;  // abandoned
    Fetch& fetch = fetches_.at(found->second);
    if (fetch.read_late && fetch.copy != nullptr) read(found->second, fetch);
    fetch.arrived = true;
    under_way_.erase(found);
    ++done;
  }
  landed_.clear();
  return done;
}

std::vector<bool>::iterator SimFabric::claim_of(std::uint64_t offset) {
  return claimed_.begin() + static_cast<std::ptrdiff_t>(offset / kClaimUnit);
}

std::byte* SimFabric::claim(Range range) {
  check_segment(rank_, range, "claim");
  if (!claimed_.empty())
    std::fill(claim_of(range.offset), claim_of(range.offset + range.bytes), true);
  claimed_range_ = range;
  return world_.memory_.own(rank_) + range.offset;
}

void SimFabric::commit(Range range, Store store) {
  check_segment(rank_, range, "commit");
  if (!claimed_.empty()) end_claim(range);
  const Pod& pod = world_.options().pod;
  if (!pod.mapped) {
    world_.spend(time_of(range.bytes, pod.lane.copy));
  } else if (range.offset == claimed_range_.offset && range.bytes == claimed_range_.bytes) {
    spend(time_of(range.bytes, costs().share));  // else it was written there, and not just now
    prepare_rows(range.bytes);
    has_stored_ = true;
  }
  world_.memory_.commit(rank_, range, store, world_.loose());
}

void SimFabric::replicate(int rank, std::span<const Range> ranges) {
  if (maps(rank) || rank == rank_) return;
  std::uint64_t bytes = 0;
  for (const Range& range : ranges) {
    check_segment(rank_, range, "replicate");
    bytes += range.bytes;
    world_.fabric(rank).replicas_.insert({rank_, range.offset, range.bytes});
  }
  world_.send_put(rank_, {.to = rank,
                          .bytes = bytes,
                          .put = world_.memory_.put_replica(rank_, rank),
                          .issue = world_.options().pod.lane.flag(),
                          .rate = world_.options().pod.lane.put});
}

void SimFabric::end_claim(Range range) {
  const auto first = claim_of(range.offset);
  const auto last = claim_of(range.offset + range.bytes);
  if (std::find(first, last, false) != last) {
    broken_invariant(
        fmt::format("rank {} commits {} bytes at {}, not claimed", rank_, range.bytes, range.offset)
            .c_str());
  }
  std::fill(first, last, false);
}

std::byte* SimFabric::inbox(Range range) {
  check_inbox(rank_, range, "inbox");
  if (world_.options().copies_inbox && part_ == Part::dispatch && is_row(range)) {
    spend(world_.options().pod.lane.receive_row);
  }
  if (world_.options().pod.mapped && world_.options().copies_inbox && is_row(range)) {
    spend(time_of(range.bytes, costs().read));
  }
  world_.memory_.absorb(rank_);
  return world_.memory_.inbox(rank_) + range.offset;
}

const std::byte* SimFabric::inbox_of(int rank, Range range) {
  if (rank == rank_) return inbox(range);
  if (!maps(rank)) broken_invariant("a rank reads the inbox of another host's");
  check_inbox(rank, range, "inbox_of");
  if (range.bytes != 0) world_.read(rank_, rank, range.bytes);
  return world_.memory_.inbox(rank) + range.offset;
}

std::byte* SimFabric::claim_at(int rank, Range range) {
  if (rank == rank_) broken_invariant("a rank puts rows into its own inbox");
  check_inbox(rank, range, "claim_at");
  return world_.memory_.outgoing(rank_, rank) + range.offset;
}

void SimFabric::commit_at(int rank, Range range, Store store) {
  check_inbox(rank, range, "commit_at");
  if (range.bytes == 0) return;
  has_stored_ = true;
  const LaneCosts& lane = costs();
  if (is_row(range)) {
    spend(part_ == Part::dispatch ? lane.row : lane.combine_row);
    world_.await_room();
  }
  const std::uint64_t put = world_.memory_.put(rank_, rank, range, store, world_.loose());
  world_.send_put(rank_, {.to = rank,
                          .bytes = range.bytes,
                          .put = put,
                          .issue = lane.issue,
                          .rate = lane.put,
                          .is_row = is_row(range)});
}

std::byte* SimFabric::incoming(int source, Range range) {
  check_rank(source, "incoming");
  world_.spend(world_.options().pod.lane.poll);
  std::byte* bytes = inbox(range);
  return facts_.moves_rows || world_.memory_.has_landed(rank_, range.offset) ? bytes : nullptr;
}

void SimFabric::taken(int source, Range range) {
  check_rank(source, "taken");
  if (part_ == Part::dispatch && is_row(range)) spend(world_.options().pod.lane.receive_row);
  if (!facts_.moves_rows) world_.memory_.take_landed(rank_, range.offset);
}

bool SimFabric::flushed(int rank) {
  check_rank(rank, "flushed");
  world_.spend(world_.options().pod.lane.poll);
  return world_.memory_.flushed(rank_, rank);
}

std::uint64_t SimFabric::load_flag(int rank, std::uint64_t offset) const {
  check_segment(rank, {offset, 8}, "load_flag");
  world_.spend(world_.options().pod.lane.poll);
  // acquires: as the concept says; memory_ lets the flag appear after what it announces.
  return world_.memory_.load_flag(rank_, rank, offset);
}

void SimFabric::publish(int peer, std::uint64_t offset, std::uint64_t value, const char* call) {
  check_segment(rank_, {offset, 8}, call);
  if (offset % 8 != 0 || offset < kFabricHeaderBytes) {
    broken_invariant(
        fmt::format("rank {}: {} at {}: no place for one", rank_, call, offset).c_str());
  }
  world_.spend(world_.options().pod.lane.flag());
  // acquires: nothing; the own word.
  const std::uint64_t before = world_.memory_.load_flag(rank_, rank_, offset);
  if (value <= before) {
    broken_invariant(
        fmt::format("rank {}: {} at {}: {} after {}", rank_, call, offset, value, before).c_str());
  }
  if (world_.keeps_transcript()) {
    world_.note(rank_, fmt::format("{} = {}", world_.options().name_word(rank_, offset), value));
  }
  // publishes: as the concept says; memory_ keeps the order.
  world_.memory_.store_flag(rank_, peer, offset, value,
                            [this](int p) { return world_.latency(rank_, p); });
}

void SimFabric::store_flag(std::uint64_t offset, std::uint64_t value) {
  publish(-1, offset, value, "store_flag");
}

void SimFabric::signal(int rank, std::uint64_t offset, std::uint64_t value) {
  publish(rank, offset, value, "signal");
}

void SimFabric::order(Ordering) {
  // On mapped memory an ordering costs what stores are still on their way.
  if (!world_.options().pod.mapped || has_stored_) world_.spend(world_.options().pod.lane.fence);
  has_stored_ = false;
  // orders: what this lane stored past its caches, before the rank's next flags.
  world_.memory_.order(rank_, world_.loose());
}

void SimFabric::work(Work work) {
  const LaneCosts& lane = costs();
  if (work.kind == Work::Kind::barrier) return world_.spend(work.bytes * lane.barrier);
  const std::uint64_t rate = work.kind == Work::Kind::plan     ? lane.plan
                             : work.kind == Work::Kind::reduce ? lane.reduce
                                                               : lane.copy;
  world_.spend(time_of(work.bytes, rate));
  if (world_.options().pod.mapped && work.kind != Work::Kind::plan) prepare_rows(work.bytes);
}

PeerState SimFabric::peer_state(int rank) const {
  world_.spend(world_.options().pod.lane.poll);
  // acquires: the peer's last words before it left or failed.
  const std::uint64_t state = world_.memory_.load_flag(rank_, rank, Memory::kStateWord);
  if (state != 0) return static_cast<PeerState>(state);
  const bool dead = world_.is_dead(rank) && world_.memory_.has_all_of(rank_, rank);
  return dead ? PeerState::dead : PeerState::live;
}

void SimFabric::set_state(PeerState state) {
  if (state == PeerState::live) return;
  world_.spend(world_.options().pod.lane.issue);
  world_.note(rank_, fmt::format("state = {}", state == PeerState::left ? "left" : "failed"));
  // publishes: all earlier words.
  world_.memory_.store_flag(rank_, -1, Memory::kStateWord, static_cast<std::uint64_t>(state),
                            [this](int p) { return world_.latency(rank_, p); });
}

std::string SimFabric::held() const {
  if (fetches_.empty()) return "";
  // The order of a hash table must not show.
  const auto first = std::min_element(
      fetches_.begin(), fetches_.end(),
      [](const auto& a, const auto& b) { return a.second.number < b.second.number; });
  const Place& place = first->first;
  return fmt::format("rank {} still holds {} bytes at {} of rank {}", rank_, place.bytes,
                     place.offset, place.rank);
}

}  // namespace ubep::sim
