#include "fabric/ucx/fabric.hpp"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "fabric/concept.hpp"
#include "fabric/shm/messages.hpp"
#include "fabric/ucx/host.hpp"
#include "ubep/status.hpp"

namespace ubep {

static_assert(Fabric<UcxFabric>);

namespace {

// Rows for one rank are put together up to here: the first are under way while others are written.
constexpr std::uint64_t kMostPending = 256 * 1024;
constexpr timespec kNap = {0, 50'000};                   // of a set-up
constexpr std::uint64_t kGreetingOffset = kProbeOffset;  // nobody probes a rank of another host

bool overlap(Range a, Range b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

// By rank: `told` of all, identity and name. Who told nothing takes no part, and counts to the host
// of the rank before, so that it does not part that host's ranks.
std::vector<UcxFabric::Host> UcxFabric::compare_hosts(const std::vector<std::string>& told,
                                                      const std::string& mine) {
  std::vector<Host> hosts;
  std::map<std::string, int> numbers;
  for (const std::string& text : told) {
    const std::string id = text.substr(0, text.find('\n'));
    if (!text.empty() && id.size() == text.size()) {
      throw Error(ErrorCode::setup, "a rank does not tell its host");
    }
    const int before = hosts.empty() ? 0 : hosts.back().number;
    const int number =
        text.empty() ? before
                     : numbers.try_emplace(id, static_cast<int>(numbers.size())).first->second;
    hosts.push_back({.name = text.empty() ? std::string() : text.substr(id.size() + 1),
                     .number = number,
                     .is_mine = !text.empty() && id == mine});
  }
  return hosts;
}

UcxFabric::Joined UcxFabric::join(const JoinRequest& request, const TcpPlace& place) {
  const JoinRequest wanted = with_members(request);
  TcpMeeting meeting(wanted, place);
  try {
    const std::string mine = wanted.host + '\n' + ubep::host_name();
    std::vector<Host> hosts = compare_hosts(meeting.exchange(mine), wanted.host);
    JoinRequest here = wanted;
    here.names_members = true;
    std::erase_if(here.members, [&](int r) { return !hosts[static_cast<std::size_t>(r)].is_mine; });
    Joined joined;
    joined.local = ShmFabric::join(here, nullptr);
    joined.all.reset(new UcxFabric(wanted, *joined.local, std::move(hosts), wanted.members));
    joined.all->connect(wanted, meeting);
    return joined;
  } catch (const std::exception& error) {
    meeting.decline(error.what());
    throw;
  }
}

void UcxFabric::decline(const JoinRequest& request, const TcpPlace& place, const char* why) {
  TcpMeeting::decline(with_members(request), place, why);
}

UcxFabric::UcxFabric(const JoinRequest& request, ShmFabric& local, std::vector<Host> hosts,
                     std::vector<int> members)
    : local_(local),
      pid_(getpid()),
      hosts_(std::move(hosts)),
      members_(std::move(members)),
      told_bytes_(request.told_bytes),
      pending_(static_cast<std::size_t>(local.size())) {
  for (int r : members_) {
    if (is_remote(r)) remote_.push_back(r);
  }
  if (!remote_.empty()) transport_ = std::make_unique<UcxTransport>(rank(), size());
  facts_ = local.facts();
  facts_.mapped = false;
  std::vector<int> numbers;
  for (const Host& host : hosts_) numbers.push_back(host.number);
  for (const Host& host : hosts_) facts_.tiers.push_back(host.is_mine ? 0 : 1);
  facts_.hosts = HostMap(numbers);
}

UcxFabric::~UcxFabric() {
  if (transport_ == nullptr) return;
  if (pid_ != getpid()) {  // a forked child must not touch its parent's connections
    (void)transport_.release();
    return;
  }
  const std::lock_guard lock(mutex_);
  transport_->finish(std::chrono::steady_clock::now() + linger_);
}

std::string UcxFabric::transport() const {
  return transport_ == nullptr ? std::string() : "UCX " + UcxTransport::version();
}

std::uint64_t UcxFabric::bytes_between_hosts() {
  const std::lock_guard lock(mutex_);
  return transport_ == nullptr ? 0 : transport_->bytes();
}

std::vector<Window> UcxFabric::windows_for(int rank, const JoinRequest& request) {
  const auto mine = static_cast<std::size_t>(this->rank());
  const auto theirs = static_cast<std::size_t>(rank);
  const std::uint64_t inbox_bytes = request.inbox_bytes.empty() ? 0 : request.inbox_bytes[mine];
  return {{inbox({}), inbox_bytes, true},
          {claim({}), request.segment_bytes[mine], false},
          {copy_of(rank, {}), request.segment_bytes[theirs], true}};
}

void UcxFabric::connect(const JoinRequest& request, TcpMeeting& meeting) {
  const bool alone = transport_ == nullptr;
  const std::vector<std::string> told =
      meeting.exchange(alone ? std::string() : transport_->describe());
  for (int r : remote_) {
    transport_->connect(r, told[static_cast<std::size_t>(r)], windows_for(r, request));
  }
  put_word(remote_, kGreetingOffset, 1);
  await_words(request, kGreetingOffset);
  set_state(PeerState::live);
  await_words(request, kStateOffset);
  const auto begun = std::chrono::steady_clock::now();
  (void)meeting.exchange({});  // nobody begins before all can be reached
  // A set-up that fails has nothing to wait for: others are to be told at once.
  linger_ = std::chrono::duration_cast<std::chrono::milliseconds>(request.deadline - begun);
}

// Until this word of every rank is here. Of greetings also until mine have arrived: whoever tells
// its state needs no more of this rank, which may stop moving transfers on.
void UcxFabric::await_words(const JoinRequest& request, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (transport_ != nullptr) transport_->post();
  for (int r : remote_) {
    // acquires: nothing; that the other side can be reached.
    while (load_flag(r, offset) == 0 || (offset == kGreetingOffset && !transport_->flushed(r))) {
      const char* failure = transport_->failure(r);
      if (failure != nullptr || std::chrono::steady_clock::now() >= request.deadline) {
        throw Error(
            ErrorCode::setup,
            fmt::format("rank {} (host {}) cannot be reached over UCX from host {}: {}", r,
                        host_name(r), ubep::host_name(), failure == nullptr ? "timeout" : failure));
      }
      if (transport_->progress() == 0) nanosleep(&kNap, nullptr);
    }
  }
}

const std::byte* UcxFabric::acquire(int rank, Range range) {
  if (!is_remote(rank)) return local_.acquire(rank, range);
  const bool is_told = range.offset + range.bytes <= told_bytes_[static_cast<std::size_t>(rank)];
  std::byte* here = copy_of(rank, range);
  if (is_told || range.bytes == 0) return here;
  const std::lock_guard lock(mutex_);
  for (const Fetch& fetch : fetches_) {
    if (fetch.rank != rank) continue;
    if (!fetch.wanted && overlap(fetch.range, range)) return nullptr;  // first the old bytes come
    if (fetch.wanted && fetch.range.offset == range.offset) return fetch.done == 1 ? here : nullptr;
  }
  Fetch& fetch = fetches_.emplace_back(Fetch{.rank = rank, .range = range});
  transport_->get({rank, kSegment, range.offset}, {here, range.bytes}, &fetch.done);
  transport_->post();
  return fetch.done == 1 ? here : nullptr;
}

void UcxFabric::release(int rank, Range range) {
  if (is_remote(rank)) abandon(rank, {range.offset, 1});
}

// Bytes that are under way still come, and nothing else may be fetched to their place before.
void UcxFabric::abandon(int rank, Range range) {
  if (!is_remote(rank)) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(fetches_, [&](Fetch& fetch) {
    if (fetch.rank != rank || fetch.range.offset < range.offset ||
        fetch.range.offset >= range.offset + range.bytes) {
      return false;
    }
    fetch.wanted = false;
    return fetch.done != 0;
  });
}

void UcxFabric::replicate(int rank, std::span<const Range> ranges) {
  if (!is_remote(rank)) return;
  const std::lock_guard lock(mutex_);
  for (const Range& range : ranges) {
    transport_->put({rank, kCopy, range.offset}, {claim(range), range.bytes});
  }
}

void UcxFabric::commit_at(int rank, Range range, Store store) {
  if (!is_remote(rank)) return local_.commit_at(rank, range, store);
  // orders: streamed rows, before another lane sends them.
  if (store == Store::far) local_.order(Ordering::before_flag);
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_[static_cast<std::size_t>(rank)];
  if (range.offset != pending.end) put_pending(rank);
  if (pending.begin == pending.end) pending.begin = range.offset;
  pending.end = range.offset + range.bytes;
  if (pending.end - pending.begin >= kMostPending) put_pending(rank);
}

void UcxFabric::put_pending(int rank) {
  Pending& pending = pending_[static_cast<std::size_t>(rank)];
  const Range range{pending.begin, pending.end - pending.begin};
  if (range.bytes == 0) return;
  transport_->put({rank, kInbox, range.offset}, {claim_at(rank, range), range.bytes});
  pending.begin = pending.end;
}

// After all that was written for these ranks.
void UcxFabric::put_word(std::span<const int> ranks, std::uint64_t offset, std::uint64_t value) {
  if (ranks.empty()) return;
  const std::lock_guard lock(mutex_);
  for (int r : ranks) {
    put_pending(r);
    transport_->put_word({r, kCopy, offset}, value);
  }
}

bool UcxFabric::flushed(int rank) {
  if (!is_remote(rank)) return local_.flushed(rank);
  const std::lock_guard lock(mutex_);
  put_pending(rank);
  return transport_->flushed(rank);
}

void UcxFabric::store_flag(std::uint64_t offset, std::uint64_t value) {
  // publishes: what this rank stored before; the caller says what that is. Ranks of other hosts
  // find it behind all that was put to them.
  local_.store_flag(offset, value);
  put_word(remote_, offset, value);
}

void UcxFabric::signal(int rank, std::uint64_t offset, std::uint64_t value) {
  // publishes: as store_flag() does, to one rank.
  if (!is_remote(rank)) return local_.signal(rank, offset, value);
  put_word({&rank, 1}, offset, value);
}

void UcxFabric::order(Ordering ordering) {
  local_.order(ordering);  // orders: streamed rows for ranks of this host before the flag
  if (remote_.empty()) return;
  const std::lock_guard lock(mutex_);
  for (int r : remote_) put_pending(r);
}

void UcxFabric::post() {
  if (remote_.empty()) return;
  const std::lock_guard lock(mutex_);
  for (int r : remote_) put_pending(r);
  transport_->post();
}

int UcxFabric::progress() {
  if (remote_.empty()) return 0;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return 0;
  for (int r : remote_) put_pending(r);
  transport_->post();
  const int moved = transport_->progress();
  std::erase_if(fetches_, [](const Fetch& fetch) { return !fetch.wanted && fetch.done != 0; });
  return moved;
}

PeerState UcxFabric::peer_state(int rank) {
  if (!is_remote(rank)) return local_.peer_state(rank);
  // acquires: the peer's last words before it left or failed, so that they count as set.
  const auto state = static_cast<PeerState>(load_flag(rank, kStateOffset));
  if (state == PeerState::left || state == PeerState::failed) return state;
  const std::lock_guard lock(mutex_);
  const bool is_member = std::binary_search(members_.begin(), members_.end(), rank);
  return !is_member || transport_->failure(rank) != nullptr ? PeerState::dead : PeerState::live;
}

void UcxFabric::set_state(PeerState state) {
  local_.set_state(state);
  put_word(remote_, kStateOffset, static_cast<std::uint64_t>(state));
  post();
}

}  // namespace ubep
