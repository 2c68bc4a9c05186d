#include "support/fabric_groups.hpp"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>

#include "support/ranks.hpp"
#include "ubep/status.hpp"

#ifdef __SANITIZE_THREAD__
// What a rank has read of another's bytes is told over sockets, of which the sanitizer knows
// nothing.
extern "C" const char* __tsan_default_suppressions();  // NOLINT
extern "C" const char* __tsan_default_suppressions() { return "race:ucs_socket_sendv_nb\n"; }
#endif

namespace ubep::test {
namespace {

void run_threads(std::size_t count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < count; ++r) threads.emplace_back(body, static_cast<int>(r));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

ShmGroup::ShmGroup(const std::vector<std::uint64_t>& segment_bytes) : ranks_(segment_bytes.size()) {
  detail::ThreadRendezvous rendezvous(static_cast<int>(segment_bytes.size()));
  run([&](int r) {
    const JoinRequest request{
        .rank = r,
        .size = static_cast<int>(segment_bytes.size()),
        .deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20),
        .segment_bytes = segment_bytes,
        .inbox_bytes = segment_bytes};
    ranks_[static_cast<std::size_t>(r)] = ShmFabric::join(request, &rendezvous);
  });
}

void ShmGroup::run(const std::function<void(int)>& body) { run_threads(ranks_.size(), body); }

bool has_ucx() {
#ifdef __SANITIZE_THREAD__
  // UCX patches libc's madvise(), which threads call when the sanitizer has said good-bye to them.
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
#endif
  try {
    return !UcxTransport::version().empty();
  } catch (const Error&) {  // built with its headers, and it is not installed
    return false;
  }
}

UcxGroup::UcxGroup(const std::vector<std::uint64_t>& segment_bytes, std::uint64_t told_bytes)
    : ranks_(segment_bytes.size()) {
  setenv("UCX_NET_DEVICES", "lo", 0);
  const TcpPlace place{"127.0.0.1", free_port()};
  std::vector<std::exception_ptr> errors(ranks_.size());
  run([&](int r) {
    const JoinRequest request{
        .rank = r,
        .size = static_cast<int>(segment_bytes.size()),
        .deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20),
        .segment_bytes = segment_bytes,
        .inbox_bytes = segment_bytes,
        .told_bytes = std::vector<std::uint64_t>(segment_bytes.size(), told_bytes),
        .host = "host " + std::to_string(r)};
    try {
      ranks_[static_cast<std::size_t>(r)] = UcxFabric::join(request, place);
    } catch (...) {
      errors[static_cast<std::size_t>(r)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  helper_ = std::thread([this] {
    while (!over_) {
      int moved = 0;
      for (UcxFabric::Joined& rank : ranks_) moved += help_ ? rank.all->progress() : 0;
      if (moved == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
}

UcxGroup::~UcxGroup() {
  over_ = true;
  helper_.join();
  run([&](int r) {
    UcxFabric::Joined& rank = ranks_[static_cast<std::size_t>(r)];
    rank.all.reset();
    rank.local.reset();
  });
}

void UcxGroup::run(const std::function<void(int)>& body) { run_threads(ranks_.size(), body); }

#ifdef UBEP_HAVE_SIM

namespace {

sim::WorldOptions options_of(const std::vector<std::uint64_t>& segment_bytes, bool mapped,
                             bool weak) {
  using sim::kNanosecond;
  sim::WorldOptions options;
  options.ranks = static_cast<int>(segment_bytes.size());
  options.mapped = mapped;
  options.has_links = false;
  options.hesitation = 20 * kNanosecond;
  options.pod.tiers = {{"all", options.ranks, 100 * kNanosecond, 0}};
  options.pod.jitter = 50 * kNanosecond;
  options.pod.lane.poll = 10 * kNanosecond;
  options.memory.segment_bytes = segment_bytes;
  options.memory.inbox_bytes = segment_bytes;
  options.memory.weak = weak;
  options.memory.delay = 2000 * kNanosecond;
  return options;
}

}  // namespace

SimGroup::SimGroup(const std::vector<std::uint64_t>& segment_bytes, bool mapped, bool weak)
    : world_(options_of(segment_bytes, mapped, weak)) {}

void SimGroup::run(const std::function<void(int)>& body) {
  for (int r = 0; r < world_.options().ranks; ++r) {
    world_.start(
        r, [&body, r] { body(r); }, world_.now());
  }
  (void)world_.run();
}

#endif

}  // namespace ubep::test
