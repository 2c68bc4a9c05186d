#include "support/fabric_groups.hpp"

#include <chrono>
#include <thread>

namespace ubep::test {

ShmGroup::ShmGroup(const std::vector<std::uint64_t>& segment_bytes) : ranks_(segment_bytes.size()) {
  detail::ThreadRendezvous rendezvous(static_cast<int>(segment_bytes.size()));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < segment_bytes.size(); ++r) {
    threads.emplace_back([&, r] {
      const JoinRequest request{
          .rank = static_cast<int>(r),
          .size = static_cast<int>(segment_bytes.size()),
          .deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20),
          .segment_bytes = segment_bytes};
      ranks_[r] = ShmFabric::join(request, &rendezvous);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ubep::test
