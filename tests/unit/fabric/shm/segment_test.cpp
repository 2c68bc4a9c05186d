// What a peer can and cannot do with a segment. Peers are forked processes: they have the
// descriptor but, as everywhere, no mapping.
#include "fabric/shm/segment.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/shm/socket.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr std::uint64_t kBytes = 65'536;

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

// Runs `body` in a child; returns its exit status, 0 = as expected.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    _exit(status);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(SegmentTest, TheOwnersBytesAreSeenByAPeer) {
  const Segment own = Segment::create(kBytes, 0);
  EXPECT_EQ(own.bytes(), kBytes);
  EXPECT_EQ(own.data()[kBytes - 1], std::byte{0});
  own.data()[kBytes - 1] = std::byte{42};
  EXPECT_EQ(in_child([&] {
              const Segment peer = Segment::attach(dup(own.fd()), kBytes, 0);
              return peer.data()[kBytes - 1] == std::byte{42} ? 0 : 1;
            }),
            0);
}

TEST(SegmentTest, APeerCannotMapItWritable) {
  const Segment own = Segment::create(kBytes, 0);
  EXPECT_EQ(
      in_child([&] {
        const int fd = own.fd();
        if (mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) {
          return 1;
        }
        const Segment peer = Segment::attach(dup(fd), kBytes, 0);
        if (mprotect(peer.data(), kBytes, PROT_READ | PROT_WRITE) == 0) return 2;
        const char byte = 1;
        if (pwrite(fd, &byte, 1, 0) == 1) return 3;
        // A descriptor of its own, opened anew.
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        const int again = open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (again >= 0 && pwrite(again, &byte, 1, 0) == 1) return 4;
        if (again >= 0 && mmap(nullptr, kBytes, PROT_WRITE, MAP_SHARED, again, 0) != MAP_FAILED) {
          return 5;
        }
        return 0;
      }),
      0);
  EXPECT_EQ(own.data()[0], std::byte{0});
}

// A reader must never be hit by SIGBUS.
TEST(SegmentTest, NobodyCanTruncateItOrTakeASealOff) {
  const Segment own = Segment::create(kBytes, 0);
  const auto attempts = [&] {
    if (ftruncate(own.fd(), 0) == 0) return 1;
    if (ftruncate(own.fd(), 2 * kBytes) == 0) return 2;
    if (fallocate(own.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return 3;
    if (fcntl(own.fd(), F_ADD_SEALS, F_SEAL_WRITE) == 0) return 4;
    return 0;
  };
  EXPECT_EQ(in_child(attempts), 0);
  EXPECT_EQ(ftruncate(own.fd(), 0), -1);
  own.data()[kBytes - 1] = std::byte{1};  // still there
}

int make_memfd(std::uint64_t bytes, int seals) {
  const int fd = memfd_create("ubep-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

void expect_refusal(int fd, const char* reason) {
  try {
    (void)Segment::attach(fd, kBytes, 3);
    FAIL() << "attached, expected: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::setup);
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "the descriptor was not closed";
}

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

TEST(SegmentTest, WrongSizesAreRefused) {
  expect_refusal(make_memfd(kBytes / 2, kAllSeals), "rank 3 has 32768 bytes, expected 65536");
  expect_refusal(make_memfd(2 * kBytes, kAllSeals), "rank 3 has 131072 bytes, expected 65536");
}

TEST(SegmentTest, EachSealIsDemanded) {
  for (const int seal : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL}) {
    expect_refusal(make_memfd(kBytes, kAllSeals & ~seal), "rank 3 is not sealed");
  }
  const Segment fine = Segment::attach(make_memfd(kBytes, kAllSeals), kBytes, 3);
  EXPECT_EQ(fine.data()[0], std::byte{0});
}

TEST(SegmentTest, ASizeThatCannotBeIsAnError) {
  EXPECT_THROW((void)Segment::create(std::uint64_t{1} << 63, 0), Error);
}

TEST(SegmentTest, MovesWithItsMemory) {
  Segment a = Segment::create(kBytes, 2);
  std::byte* data = a.data();
  Segment b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.fd(), -1);  // NOLINT(bugprone-use-after-move): what this test is about
  Segment c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.bytes(), kBytes);
  c.data()[0] = std::byte{1};
}

TEST(SegmentTest, AForkedChildUnmapsNothing) {
  auto own = std::make_unique<Segment>(Segment::create(4096, 0));
  EXPECT_EQ(in_child([&] {
              void* place = mmap(own->data(), 4096, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
              if (place != own->data()) return 1;  // inherited after all
              *static_cast<char*>(place) = 9;
              own.reset();
              return *static_cast<char*>(place) == 9 ? 0 : 2;
            }),
            0);
}

TEST(SegmentTest, APeerSeesTheOwnerAlive) {
  const Segment own = Segment::create(kBytes, 5);
  EXPECT_EQ(in_child([&] {
              const Segment peer = Segment::attach(dup(own.fd()), kBytes, 5);
              return peer.alive() ? 0 : 1;
            }),
            0);
}

struct Birth {
  pid_t owner;
  pid_t child_of_owner;
};

// Creates a segment, forks a child that lives on, sends the descriptor, and waits to be killed.
[[noreturn]] void run_owner(const Socket& socket) {
  const Segment segment = Segment::create(kBytes, 1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    for (;;) pause();
  }
  const Birth birth{getpid(), child};
  if (!socket.send(&birth, sizeof(birth), {segment.fd()})) _exit(1);
  alarm(20);
  for (;;) pause();
}

// The child has a copy of the descriptor and would keep a socket or a flock() alive.
TEST(SegmentTest, DeathIsSeenThoughAChildOfTheOwnerLives) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Socket mine(ends[0]);
  const Socket theirs(ends[1]);
  const pid_t owner = fork();
  if (owner == 0) run_owner(theirs);
  Birth birth{};
  std::vector<int> fds;
  ASSERT_EQ(mine.receive(&birth, sizeof(birth), fds, soon()), static_cast<long>(sizeof(birth)));
  ASSERT_EQ(fds.size(), 1U);
  const Segment peer = Segment::attach(fds[0], kBytes, 1);
  EXPECT_TRUE(peer.alive());
  ASSERT_EQ(kill(owner, SIGSTOP), 0);
  EXPECT_TRUE(peer.alive()) << "stopped is not dead";
  ASSERT_EQ(kill(owner, SIGKILL), 0);
  ASSERT_EQ(waitpid(owner, nullptr, 0), owner);
  EXPECT_FALSE(peer.alive());
  EXPECT_EQ(kill(birth.child_of_owner, 0), 0) << "the child should still live";
  EXPECT_EQ(peer.data()[0], std::byte{0}) << "the bytes outlive their owner";
  kill(birth.child_of_owner, SIGKILL);
}

TEST(SegmentTest, AnOwnerThatEndsIsSeen) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Socket mine(ends[0]);
  const Socket theirs(ends[1]);
  std::vector<int> fds;
  char byte = 0;
  EXPECT_EQ(in_child([&] {
              const Segment segment = Segment::create(kBytes, 1);
              return theirs.send(&byte, 1, {segment.fd()}) ? 0 : 1;
            }),
            0);
  ASSERT_EQ(mine.receive(&byte, 1, fds, soon()), 1);
  EXPECT_FALSE(Segment::attach(fds[0], kBytes, 1).alive());
}

}  // namespace
}  // namespace ubep
