#include "support/fabric_groups.hpp"

#include <chrono>
#include <thread>

namespace ubep::test {

ShmGroup::ShmGroup(const std::vector<std::uint64_t>& segment_bytes) : ranks_(segment_bytes.size()) {
  detail::ThreadRendezvous rendezvous(static_cast<int>(segment_bytes.size()));
  run([&](int r) {
    const JoinRequest request{
        .rank = r,
        .size = static_cast<int>(segment_bytes.size()),
        .deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20),
        .segment_bytes = segment_bytes};
    ranks_[static_cast<std::size_t>(r)] = ShmFabric::join(request, &rendezvous);
  });
}

void ShmGroup::run(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

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
