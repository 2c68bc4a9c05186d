#include "fabric/shm/socket.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/group_config.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

using namespace std::chrono_literals;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

std::string unique_name(const char* test) {
  return "ubep-socket-test-" + std::to_string(getpid()) + "-" + test;
}

std::pair<Socket, Socket> connected() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

TEST(SocketTest, ConnectsByName) {
  const std::string name = unique_name("connect");
  const Socket listener = Socket::listen(name, 4);
  const Socket client = Socket::connect(name, in(5s));
  const Socket server = listener.accept(in(5s));
  ASSERT_TRUE(client.valid());
  ASSERT_TRUE(server.valid());
  EXPECT_TRUE(client.same_user());
  EXPECT_TRUE(server.same_user());
  EXPECT_EQ(server.peer_pid(), getpid());
  ASSERT_TRUE(client.send("hello", 5));
  char text[16] = {};
  std::vector<int> fds;
  EXPECT_EQ(server.receive(text, sizeof(text), fds, in(5s)), 5);
  EXPECT_STREQ(text, "hello");
  EXPECT_TRUE(fds.empty());
}

TEST(SocketTest, ConnectWaitsForTheListener) {
  const std::string name = unique_name("late");
  Socket client;
  std::thread late([&] { client = Socket::connect(name, in(10s)); });
  std::this_thread::sleep_for(20ms);
  const Socket listener = Socket::listen(name, 1);
  late.join();
  EXPECT_TRUE(client.valid());
}

TEST(SocketTest, ANameHasOneListener) {
  const std::string name = unique_name("twice");
  const Socket listener = Socket::listen(name, 1);
  try {
    (void)Socket::listen(name, 1);
    FAIL() << "two listeners under one name";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::setup);
    EXPECT_NE(std::string(error.what()).find("in use"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
  }
}

TEST(SocketTest, TheNameIsFreeOnceTheListenerIsGone) {
  const std::string name = unique_name("again");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Socket::listen(name, 1).valid());
  EXPECT_FALSE(Socket::connect(name, in(0ms)).valid());
}

TEST(SocketTest, NothingComesIsNotForEver) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(Socket::connect(unique_name("nobody"), in(30ms)).valid());
  const Socket listener = Socket::listen(unique_name("lonely"), 1);
  EXPECT_FALSE(listener.accept(in(30ms)).valid());
  const auto [a, b] = connected();
  char byte = 0;
  std::vector<int> fds;
  EXPECT_EQ(a.receive(&byte, 1, fds, in(30ms)), -1);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 90ms);
  EXPECT_LT(took, 5s);
}

TEST(SocketTest, APeerThatLeftIsNoticed) {
  auto [a, b] = connected();
  b = Socket();
  char byte = 0;
  std::vector<int> fds;
  EXPECT_EQ(a.receive(&byte, 1, fds, in(5s)), -1);
  EXPECT_FALSE(a.send(&byte, 1)) << "and no SIGPIPE";
}

// As many as one rank can be sent: each arrives, in order, and is closed on exec.
TEST(SocketTest, DescriptorsTravelWithTheMessage) {
  const auto [a, b] = connected();
  std::vector<int> sent;
  for (int i = 0; i < kMaxRanks; ++i) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const char byte = static_cast<char>(i);
    ASSERT_EQ(write(ends[1], &byte, 1), 1);
    close(ends[1]);
    sent.push_back(ends[0]);
  }
  ASSERT_TRUE(a.send("x", 1, sent));
  for (const int fd : sent) close(fd);
  char byte = 0;
  std::vector<int> got;
  ASSERT_EQ(b.receive(&byte, 1, got, in(5s)), 1);
  ASSERT_EQ(got.size(), sent.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(read(got[i], &byte, 1), 1);
    EXPECT_EQ(byte, static_cast<char>(i));
    EXPECT_EQ(fcntl(got[i], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(got[i]);
  }
}

TEST(SocketTest, MessagesKeepTheirBounds) {
  const auto [a, b] = connected();
  ASSERT_TRUE(a.send("one", 3));
  ASSERT_TRUE(a.send("second", 6));
  char text[16] = {};
  std::vector<int> fds;
  EXPECT_EQ(b.receive(text, sizeof(text), fds, in(5s)), 3);
  EXPECT_EQ(b.receive(text, sizeof(text), fds, in(5s)), 6);
}

// The kernel tells of the close before it gives out what was said earlier.
TEST(SocketTest, LastWordsAreHeardThoughTheirSenderReadNothing) {
  auto [a, b] = connected();
  ASSERT_TRUE(b.send("unread", 6));
  ASSERT_TRUE(a.send("why", 3));
  { const Socket closed(std::move(a)); }
  char text[16] = {};
  std::vector<int> fds;
  EXPECT_EQ(b.receive(text, sizeof(text), fds, in(5s)), 3);
  EXPECT_STREQ(text, "why");
  EXPECT_EQ(b.receive(text, sizeof(text), fds, in(5s)), -1);
}

TEST(SocketTest, MovingLeavesNothingBehind) {
  auto [a, b] = connected();
  const Socket moved(std::move(a));
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move): what this test is about
  EXPECT_TRUE(moved.valid());
  EXPECT_TRUE(b.send("x", 1));
  EXPECT_FALSE(Socket().valid());
}

}  // namespace
}  // namespace ubep
