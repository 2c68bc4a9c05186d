#include "fabric/shm/fabric.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <optional>

#include "base/group_config.hpp"
#include "base/math.hpp"
#include "base/system_limits.hpp"
#include "fabric/concept.hpp"
#include "ubep/status.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace ubep {

static_assert(Fabric<ShmFabric>);

namespace {
constexpr std::chrono::microseconds kPatience{1000};  // of a probe between operations
}

namespace {

std::shared_ptr<Segment> make_own(const JoinRequest& request) {
  const auto rank = static_cast<std::size_t>(request.rank);
  auto own = std::make_shared<Segment>(Segment::create(request.segment_bytes[rank], request.rank));
  if (!request.inbox_bytes.empty()) {
    own->set_inbox(SharedFile::create(kInboxFile, request.inbox_bytes[rank]));
  }
  return own;
}

}  // namespace

void ShmFabric::decline(const JoinRequest& request, detail::ThreadRendezvous* threads,
                        const char* why) {
  threads != nullptr ? threads->decline(request, why) : decline_processes(request, why);
}

std::unique_ptr<ShmFabric> ShmFabric::join(const JoinRequest& request,
                                           detail::ThreadRendezvous* threads) {
  std::shared_ptr<Segment> own;
  try {
    own = make_own(request);
  } catch (const std::exception& error) {
    decline(request, threads, error.what());
    throw;
  }
  Meeting meeting = threads != nullptr ? threads->join(request, own) : join_processes(request, own);
  std::unique_ptr<ShmFabric> fabric(
      new ShmFabric(request.rank, std::move(meeting.segments), threads != nullptr));
  fabric->group_ = meeting.group;
  fabric->facts_.flag_one_way_ns = meeting.probe.one_way_ns;
  fabric->facts_.placement = classify(meeting.probe.one_way_ns);
  fabric->probe_ = std::move(meeting.probe);
  return fabric;
}

bool ShmFabric::probe_again(std::uint64_t number, bool pin) {
  const std::uint64_t others = members_.size() - 1;
  if (threads_ || others == 0 || probe_.host_cpu < 0) return false;
  const int host = members_.front();
  const int other = members_[1 + number % others];
  if (rank_ != host && rank_ != other) return false;
  const int cpu = rank_ == host ? first_cpu() : last_cpu_but(probe_.host_cpu);
  if (cpu < 0) return false;
  // Behind all values of the set-up, which starts at 1 + rank x 10^6.
  const std::uint64_t first = (kMaxRanks + 1) * 1'000'000ULL + number * kFlagsPerProbe;
  std::optional<PinnedTo> pinned;
  if (pin) pinned.emplace(cpu);
  double ns =
      ping_pong_ns(own_ + kProbeOffset, at(rank_ == host ? other : host) + kProbeOffset,
                   {.starter = rank_ == host, .first = first, .batches = 5, .patience = kPatience});
  if (ns <= 0) return false;
  if (rank_ == host) {
    probe_.by_peer[static_cast<std::size_t>(other)] = ns;
    ns = *std::max_element(probe_.by_peer.begin(), probe_.by_peer.end());
  }
  facts_.flag_one_way_ns = ns;
  facts_.placement = classify(ns);
  return true;
}

ShmFabric::ShmFabric(int rank, Segments segments, bool threads)
    : rank_(rank), threads_(threads), pid_(getpid()), segments_(std::move(segments)) {
  for (std::size_t r = 0; r < segments_.size(); ++r) {
    base_.push_back(segments_[r]->data());
    if (segments_[r]->fd() >= 0) members_.push_back(static_cast<int>(r));
  }
  for (const auto& segment : segments_) inbox_.push_back(segment->inbox().data());
  own_ = segments_[static_cast<std::size_t>(rank)]->data();
  facts_.mapped = true;
  facts_.atomic_bytes = 8;
  facts_.ordered_stores = true;  // memory is coherent: a release is one for all
  set_state(PeerState::live);
}

ShmFabric::~ShmFabric() {
  if (pid_ != getpid()) return;  // a forked child has none of the mappings
  for (const SideBySide& window : windows_) munmap(window.data, window.bytes);
}

PeerState ShmFabric::peer_state(int rank) const {
  // acquires: the peer's last words before it left or failed, so that they count as set.
  const auto state = static_cast<PeerState>(SharedWord(at(rank) + kStateOffset).load_acquire());
  if (state == PeerState::left || state == PeerState::failed) return state;
  if (!threads_ && rank != rank_ && !segments_[static_cast<std::size_t>(rank)]->alive()) {
    return PeerState::dead;
  }
  return PeerState::live;
}

void ShmFabric::end_peer(int rank) const {
  if (peer_state(rank) != PeerState::dead) segments_[static_cast<std::size_t>(rank)]->end_owner();
}

void ShmFabric::set_state(PeerState state) {
  // publishes: all earlier words; a peer that sees `left` or `failed` sees those too.
  SharedWord(own_ + kStateOffset).store_release(static_cast<std::uint64_t>(state));
}

void ShmFabric::introduce(Identity identity) {
  identity.group = group_;
  identity.rank = rank_;
  identity.size = size();
  identity.pid = pid_;
  show_identity(own_, identity);
}

void ShmFabric::prepare(Range range) {
  auto area = std::find_if(prepared_.begin(), prepared_.end(),
                           [&](const Range& r) { return r.offset == range.offset; });
  if (area == prepared_.end()) area = prepared_.insert(area, Range{range.offset, 0});
  if (range.bytes <= area->bytes) return;
  // Advice only: what is not resident now becomes so when it is first touched.
  const std::uint64_t first = (range.offset + area->bytes) / kPageBytes * kPageBytes;
  const std::uint64_t end = round_up(range.offset + range.bytes, kPageBytes);
  madvise(own_ + first, end - first, MADV_POPULATE_WRITE);
  area->bytes = range.bytes;
}

const std::byte* ShmFabric::map_side_by_side(Range range) {
  for (const SideBySide& window : windows_) {
    if (window.offset == range.offset) return window.data;
  }
  const std::size_t bytes = range.bytes * segments_.size();
  void* area = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) {
    throw Error(ErrorCode::setup,
                fmt::format("cannot reserve a view of {} bytes: {}", bytes, explain(errno)));
  }
  auto* data = static_cast<std::byte*>(area);
  windows_.push_back({range.offset, data, bytes});
  madvise(data, bytes, MADV_DONTFORK);
  for (std::size_t r = 0; r < segments_.size(); ++r) {
    if (segments_[r]->fd() < 0) {  // absent: zeros
      mprotect(data + r * range.bytes, range.bytes, PROT_READ);
      continue;
    }
    void* part = mmap(data + r * range.bytes, range.bytes, PROT_READ, MAP_SHARED | MAP_FIXED,
                      segments_[r]->fd(), static_cast<off_t>(range.offset));
    if (part == MAP_FAILED) {
      throw Error(ErrorCode::setup,
                  fmt::format("cannot map rank {}'s tokens into the view: {}", r, explain(errno)));
    }
    madvise(part, range.bytes, MADV_DONTFORK);
  }
  return data;
}

}  // namespace ubep
