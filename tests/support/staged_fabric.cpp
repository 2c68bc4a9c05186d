#include "support/staged_fabric.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/math.hpp"
#include "fabric/concept.hpp"

namespace ubep::test {

static_assert(Fabric<StagedFabric>);

namespace {

constexpr std::uint64_t kBlock = 1024;
constexpr std::size_t kPages = 16384;
constexpr std::uint64_t kClaimUnit = 4;

template <class... Args>
[[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fprintf(stderr, "staged fabric: %s\n", text.c_str());
  std::abort();
}

std::size_t pages_of(std::uint64_t bytes) {
  return static_cast<std::size_t>(round_up(std::max<std::uint64_t>(bytes, 1), kPageBytes) /
                                  kPageBytes);
}

// Calls part(block, offset in it, bytes done, bytes) for each block that the range meets.
template <class Part>
void for_each_block(std::uint64_t offset, std::uint64_t bytes, Part part) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t at = (offset + done) % kBlock;
    const std::uint64_t size = std::min(kBlock - at, bytes - done);
    part((offset + done) / kBlock, at, done, size);
    done += size;
  }
}

}  // namespace

void SparseBytes::write(std::uint64_t offset, const std::vector<std::byte>& bytes) {
  for_each_block(offset, bytes.size(), [&](auto block, auto at, auto done, auto size) {
    std::vector<std::byte>& to = blocks_[block];
    if (to.empty()) to.assign(kBlock, kUnpublished);
    std::memcpy(to.data() + at, bytes.data() + done, size);
  });
}

void SparseBytes::read(std::uint64_t offset, std::byte* to, std::uint64_t bytes) const {
  for_each_block(offset, bytes, [&](auto block, auto at, auto done, auto size) {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) {
      std::fill_n(to + done, size, kUnpublished);
    } else {
      std::memcpy(to + done, found->second.data() + at, size);
    }
  });
}

GuardedCopies::GuardedCopies() : used_(kPages) {
  void* area = mmap(nullptr, kPages * kPageBytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) broken("no room for {} pages", kPages);
  pages_ = static_cast<std::byte*>(area);
}

GuardedCopies& GuardedCopies::all() {
  static GuardedCopies copies;
  return copies;
}

std::byte* GuardedCopies::make(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = pages_of(bytes);
  std::size_t run = 0;
  for (std::size_t tried = 0; tried < 2 * kPages; ++tried, ++next_) {
    if (next_ == kPages) next_ = run = 0;
    run = used_[next_] ? 0 : run + 1;
    if (run < count) continue;
    const std::size_t first = next_ + 1 - count;
    std::fill_n(used_.begin() + static_cast<std::ptrdiff_t>(first), count, true);
    std::byte* page = pages_ + first * kPageBytes;
    if (mprotect(page, count * kPageBytes, PROT_READ | PROT_WRITE) != 0) broken("mprotect failed");
    std::fill_n(page, count * kPageBytes, kUnpublished);
    ++next_;
    return page + count * kPageBytes - round_up(bytes, kLineBytes);
  }
  broken("more than {} pages are acquired at once", kPages);
}

void GuardedCopies::drop(std::byte* copy, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = pages_of(bytes);
  std::byte* page = copy + round_up(bytes, kLineBytes) - count * kPageBytes;
  if (mprotect(page, count * kPageBytes, PROT_NONE) != 0) broken("mprotect failed");
  const auto first = (page - pages_) / static_cast<std::ptrdiff_t>(kPageBytes);
  std::fill_n(used_.begin() + first, count, false);
}

StagedFabric::StagedFabric(StagedWorld& world, int rank, std::uint64_t bytes, std::uint64_t seed)
    : world_(world),
      rank_(rank),
      random_(seed, static_cast<std::uint64_t>(rank), 0),
      staging_(bytes),
      claimed_(bytes / kClaimUnit),
      views_(world.options_.segment_bytes.size()) {
  facts_.mapped = false;
  const std::vector<std::uint64_t>& inboxes = world_.options_.inbox_bytes;
  if (inboxes.empty()) return;
  inbox_ = PrivateRows(inboxes[static_cast<std::size_t>(rank)]);
  for (const std::uint64_t inbox_bytes : inboxes) outgoing_.emplace_back(inbox_bytes);
}

StagedFabric::~StagedFabric() {
  for (auto& [place, fetch] : fetches_) GuardedCopies::all().drop(fetch.copy, place.bytes);
}

int StagedFabric::size() const { return static_cast<int>(views_.size()); }

// Aborts when the rank has ended or the range lies outside the segment.
void StagedFabric::check(int rank, Range range, const char* call) const {
  if (dead_) broken("{} by rank {}, which has ended", call, rank_);
  if (rank < 0 || rank >= size()) broken("{} of rank {}", call, rank);
  const std::uint64_t bytes = world_.options_.segment_bytes[static_cast<std::size_t>(rank)];
  if (range.offset <= bytes && range.bytes <= bytes - range.offset) return;
  broken("{} of {} bytes at {}, the segment of rank {} has {}", call, range.bytes, range.offset,
         rank, bytes);
}

std::byte* StagedFabric::claim(Range range) {
  const std::lock_guard lock(world_.mutex_);
  check(rank_, range, "claim");
  const auto first = static_cast<std::ptrdiff_t>(range.offset / kClaimUnit);
  const auto last = static_cast<std::ptrdiff_t>((range.offset + range.bytes) / kClaimUnit);
  std::fill(claimed_.begin() + first, claimed_.begin() + last, true);
  return staging_.data() + range.offset;
}

void StagedFabric::commit(Range range, Store) {
  const std::lock_guard lock(world_.mutex_);
  check(rank_, range, "commit");
  const auto first = static_cast<std::ptrdiff_t>(range.offset / kClaimUnit);
  const auto last = static_cast<std::ptrdiff_t>((range.offset + range.bytes) / kClaimUnit);
  if (std::count(claimed_.begin() + first, claimed_.begin() + last, true) != last - first) {
    broken("commit of {} bytes at {} that rank {} did not claim", range.bytes, range.offset, rank_);
  }
  std::fill(claimed_.begin() + first, claimed_.begin() + last, false);
  const std::byte* bytes = staging_.data() + range.offset;
  committed_.push_back({range.offset, {bytes, bytes + range.bytes}, -1});
}

void StagedFabric::check_inbox(int rank, Range range, const char* call) const {
  if (dead_) broken("{} by rank {}, which has ended", call, rank_);
  const std::vector<std::uint64_t>& inboxes = world_.options_.inbox_bytes;
  const std::uint64_t bytes = inboxes.empty() ? 0 : inboxes[static_cast<std::size_t>(rank)];
  if (range.offset <= bytes && range.bytes <= bytes - range.offset) return;
  broken("{} of {} bytes at {}, the inbox of rank {} has {}", call, range.bytes, range.offset, rank,
         bytes);
}

std::byte* StagedFabric::inbox(Range range) {
  check_inbox(rank_, range, "inbox");
  return inbox_.data() + range.offset;
}

std::byte* StagedFabric::claim_at(int rank, Range range) {
  if (rank == rank_) broken("rank {} puts rows into its own inbox", rank);
  check_inbox(rank, range, "claim_at");
  return outgoing_[static_cast<std::size_t>(rank)].data() + range.offset;
}

void StagedFabric::commit_at(int rank, Range range, Store) {
  const std::lock_guard lock(world_.mutex_);
  check_inbox(rank, range, "commit_at");
  std::byte* bytes = outgoing_[static_cast<std::size_t>(rank)].data() + range.offset;
  Snapshot snapshot{range.offset, {bytes, bytes + range.bytes}, rank};
  std::fill_n(bytes, range.bytes, kUnpublished);
  if (random_.one_in(3)) {
    world_.rank(rank).put(snapshot);
  } else {
    committed_.push_back(std::move(snapshot));
  }
}

void StagedFabric::put(const Snapshot& snapshot) {
  if (dead_) return;
  std::memcpy(inbox_.data() + snapshot.offset, snapshot.bytes.data(), snapshot.bytes.size());
}

std::uint64_t StagedFabric::load_flag(int rank, std::uint64_t offset) const {
  const std::lock_guard lock(world_.mutex_);
  check(rank, {offset, 8}, "load_flag");
  const auto found = view(rank).flags.find(offset);
  return found == view(rank).flags.end() ? 0 : found->second;
}

void StagedFabric::store_flag(std::uint64_t offset, std::uint64_t value) {
  const std::lock_guard lock(world_.mutex_);
  check(rank_, {offset, 8}, "store_flag");
  if (offset % 8 != 0 || offset < kFabricHeaderBytes) broken("store_flag at {}", offset);
  const std::uint64_t before = load_flag(rank_, offset);
  if (value <= before) {
    broken("rank {}: the flag at {} goes from {} to {}", rank_, offset, before, value);
  }
  publish({.data = std::exchange(committed_, {}), .offset = offset, .value = value});
}

void StagedFabric::set_state(PeerState state) {
  const std::lock_guard lock(world_.mutex_);
  check(rank_, {}, "set_state");
  publish({.is_state = true, .value = static_cast<std::uint64_t>(state)});
}

void StagedFabric::publish(Message message) {
  const auto shared = std::make_shared<const Message>(std::move(message));
  for (const auto& peer : world_.ranks_) peer->view(rank_).under_way.push_back(shared);
  deliver(view(rank_));
}

void StagedFabric::deliver(View& view) {
  const Message& message = *view.under_way.front();
  for (const Snapshot& snapshot : message.data) {
    if (snapshot.inbox_of < 0) {
      view.bytes.write(snapshot.offset, snapshot.bytes);
    } else if (snapshot.inbox_of == rank_) {
      put(snapshot);
    }
  }
  if (message.is_state) {
    view.state = static_cast<PeerState>(message.value);
  } else {
    view.flags[message.offset] = message.value;
  }
  view.under_way.pop_front();
}

PeerState StagedFabric::peer_state(int rank) const {
  const std::lock_guard lock(world_.mutex_);
  check(rank, {}, "peer_state");
  return view(rank).state;
}

const std::byte* StagedFabric::acquire(int rank, Range range) {
  const std::lock_guard lock(world_.mutex_);
  check(rank, range, "acquire");
  const auto [at, is_new] = fetches_.try_emplace({rank, range.offset, range.bytes});
  Fetch& fetch = at->second;
  if (is_new) {
    fetch.calls_left = random_.between(1, world_.options_.max_delay);
    fetch.read_late = random_.one_in(2);
    fetch.read_newest = random_.one_in(2);
    fetch.copy = GuardedCopies::all().make(range.bytes);
    if (!fetch.read_late) read(at->first, fetch);
  }
  return fetch.arrived ? fetch.copy : nullptr;
}

void StagedFabric::read(const Place& place, const Fetch& fetch) const {
  const View& from = fetch.read_newest ? std::as_const(world_.rank(place.rank)).view(place.rank)
                                       : view(place.rank);
  from.bytes.read(place.offset, fetch.copy, place.bytes);
}

void StagedFabric::release(int rank, Range range) {
  const std::lock_guard lock(world_.mutex_);
  check(rank, range, "release");
  const auto found = fetches_.find({rank, range.offset, range.bytes});
  if (found == fetches_.end() || !found->second.arrived) {
    broken("rank {} releases {} bytes at {} of rank {}, which it did not acquire", rank_,
           range.bytes, range.offset, rank);
  }
  GuardedCopies::all().drop(found->second.copy, range.bytes);
  fetches_.erase(found);
}

void StagedFabric::abandon(int rank, Range range) {
  const std::lock_guard lock(world_.mutex_);
  check(rank, range, "abandon");
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    const Place& place = it->first;
    const bool inside = place.rank == rank && place.offset >= range.offset &&
                        place.offset + place.bytes <= range.offset + range.bytes;
    if (inside) GuardedCopies::all().drop(it->second.copy, place.bytes);
    it = inside ? fetches_.erase(it) : std::next(it);
  }
}

int StagedFabric::progress() {
  const std::lock_guard lock(world_.mutex_);
  check(rank_, {}, "progress");
  int done = 0;
  for (View& peer : views_) {
    const auto most = static_cast<int>(peer.under_way.size());
    for (int left = random_.below(most + 1); left > 0; --left, ++done) deliver(peer);
  }
  for (auto& [place, fetch] : fetches_) {
    if (fetch.arrived || --fetch.calls_left > 0) continue;
    if (fetch.read_late) read(place, fetch);
    fetch.arrived = true;
    ++done;
  }
  return done;
}

std::string StagedFabric::held() const {
  const std::lock_guard lock(world_.mutex_);
  if (fetches_.empty()) return "";
  const Place& place = fetches_.begin()->first;
  return "rank " + std::to_string(rank_) + " still holds " + std::to_string(place.bytes) +
         " bytes at " + std::to_string(place.offset) + " of rank " + std::to_string(place.rank);
}

StagedWorld::StagedWorld(const Options& options) : options_(options) {
  const auto size = static_cast<int>(options_.segment_bytes.size());
  for (int r = 0; r < size; ++r) {
    ranks_.push_back(std::make_unique<StagedFabric>(
        *this, r, options_.segment_bytes[static_cast<std::size_t>(r)], options_.seed));
  }
}

void StagedWorld::end(int r, PeerState state) {
  const std::lock_guard lock(mutex_);
  rank(r).set_state(state);
  rank(r).dead_ = true;
}

}  // namespace ubep::test
