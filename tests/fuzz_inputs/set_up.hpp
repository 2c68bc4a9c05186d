// What the two targets of the set-up share: a request, and descriptors that one may send.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fabric/shm/rendezvous.hpp"
#include "fabric/shm/socket.hpp"

namespace ubep::test {

inline constexpr std::uint64_t kSegmentBytes = 8192;
inline constexpr std::uint64_t kInboxBytes = 4096;

inline JoinRequest a_request(int rank, int size, bool inboxes) {
  JoinRequest request{.rank = rank,
                      .size = size,
                      .job = "fuzz-" + std::to_string(getpid()),
                      .deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(15),
                      .fields = {{{"num_experts", 8}, {"slots", 2}}},
                      .segment_bytes = {}};
  request.segment_bytes.assign(static_cast<std::size_t>(size), kSegmentBytes);
  if (inboxes) request.inbox_bytes.assign(static_cast<std::size_t>(size), kInboxBytes);
  return request;
}

inline std::string socket_name(const JoinRequest& request) {
  char name[64];
  std::snprintf(name, sizeof(name), "ubep-%u-%016zx", geteuid(),
                std::hash<std::string>{}(request.job));
  return name;
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

}  // namespace ubep::test
