// What the two targets of the set-up share: a request, and descriptors that one may send.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fabric/shm/messages.hpp"
#include "fuzz_inputs/fuzz_input.hpp"
#include "ubep/status.hpp"

namespace ubep::test {

inline constexpr std::uint64_t kSegmentBytes = 8192;
inline constexpr std::uint64_t kInboxBytes = 4096;

inline JoinRequest a_request(int rank, int size, bool inboxes, bool keyed) {
  JoinRequest request{.rank = rank,
                      .size = size,
                      .job = "fuzz-" + std::to_string(getpid()),
                      .deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(15),
                      .fields = {{{"num_experts", 8}, {"slots", 2}}},
                      .segment_bytes = {}};
  request.segment_bytes.assign(static_cast<std::size_t>(size), kSegmentBytes);
  if (inboxes) request.inbox_bytes.assign(static_cast<std::size_t>(size), kInboxBytes);
  if (keyed) request.key = JobKey("a secret");
  return request;
}

inline std::shared_ptr<Segment> own_segment(const JoinRequest& request) {
  auto own = std::make_shared<Segment>(Segment::create(kSegmentBytes, request.rank));
  if (!request.inbox_bytes.empty()) own->set_inbox(SharedFile::create(kInboxFile, kInboxBytes));
  return own;
}

// Owned by the caller.
inline int a_descriptor(int kind) {
  const auto memory = [](std::uint64_t bytes, int seals) {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    (void)!ftruncate(fd, static_cast<off_t>(bytes));
    if (seals != 0) (void)fcntl(fd, F_ADD_SEALS, seals);
    return fd;
  };
  switch (kind) {
    case 0:
      return memory(kSegmentBytes, kSegmentFile.seals);
    case 1:
      return memory(kInboxBytes, kInboxFile.seals);
    case 2:
      return memory(kSegmentBytes, 0);
    case 3:
      return memory(kSegmentBytes / 2, kSegmentFile.seals);
    case 4:
      return memory(kInboxBytes, kSegmentFile.seals);
    case 5:
      return memory(0, kSegmentFile.seals);
    default:
      return open("/dev/null", O_RDWR | O_CLOEXEC);
  }
}

inline long open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

// A set-up of `rank` while `peers` sends what the input says.
inline void run_set_up(int rank, Bytes bytes, void (*peers)(const JoinRequest&, Bytes&)) {
  const long files = open_files();
  const auto begin = std::chrono::steady_clock::now();
  {
    const int kind = static_cast<int>(bytes.up_to(3));
    const JoinRequest request = a_request(rank, 3, (kind & 1) != 0, (kind & 2) != 0);
    std::thread others([&] { peers(request, bytes); });
    try {
      for (const auto& segment : join_processes(request, own_segment(request)).segments) {
        promise(segment->bytes() == kSegmentBytes, "a segment has the size that was agreed");
        promise(segment->data()[kSegmentBytes - 1] == std::byte{0}, "all of it can be read");
      }
    } catch (const Error&) {
    }
    others.join();
  }
  promise(open_files() == files, "no descriptor is left over");
  promise(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20), "it ends in time");
}

}  // namespace ubep::test
