// Ranks as threads that meet over TCP on this host, and strangers that speak to them as they like.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/shm/messages.hpp"
#include "fabric/tcp/meeting.hpp"
#include "fabric/tcp/wire.hpp"
#include "ubep/status.hpp"

namespace ubep::test {

using namespace std::chrono_literals;

// A plain connected TCP socket that blocks, for two seconds at most.
class RawTcp {
 public:
  explicit RawTcp(int fd) : fd_(fd) {
    const timeval most{.tv_sec = 2, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
  }
  // Tries for two seconds.
  static RawTcp connect(int port) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < 400; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return RawTcp(fd);
      ::close(fd);
      std::this_thread::sleep_for(5ms);
    }
    return RawTcp(-1);
  }
  RawTcp(RawTcp&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawTcp() { close(); }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void send(const std::string& text) const {
    (void)::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // A whole frame, header and payload; what there is of it at the end.
  std::string receive_frame() const {
    std::string text;
    std::size_t whole = kTcpHeaderBytes;
    while (text.size() < whole) {
      const std::string more = receive();
      if (more.empty()) break;
      text += more;
      if (text.size() < kTcpHeaderBytes) continue;
      if (const auto header = decode_header(text)) whole = kTcpHeaderBytes + header->bytes;
    }
    return text;
  }
  // What is there; empty at the end.
  std::string receive() const {
    std::string text(4096, 0);
    const ssize_t count = ::recv(fd_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }
  std::string receive_all() const {
    std::string all;
    for (;;) {
      const std::string part = receive();
      if (part.empty()) return all;
      all += part;
    }
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// On 127.0.0.1; port 0 = a free one.
class RawListener {
 public:
  explicit RawListener(int port = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    socklen_t length = sizeof(at);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &length);
    port_ = ntohs(at.sin_port);
  }
  RawListener(const RawListener&) = delete;
  RawListener& operator=(const RawListener&) = delete;
  ~RawListener() { ::close(fd_); }
  RawTcp accept() const { return RawTcp(::accept(fd_, nullptr, nullptr)); }
  int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

inline int free_port() { return RawListener().port(); }

struct TcpCase {
  int size = 2;
  int port = free_port();
  std::string address = "127.0.0.1";
  std::string job = "tcp-test";
  std::string key;
  std::chrono::milliseconds patience = 10s;
  std::vector<int> members;

  JoinRequest request(int rank) const {
    return {.rank = rank,
            .size = size,
            .job = job,
            .deadline = std::chrono::steady_clock::now() + patience,
            .fields = {{{"num_experts", 8}, {"slots", 2}}},
            .segment_bytes = {},
            .inbox_bytes = {},
            .members = members,
            .key = JobKey(key)};
  }
  TcpPlace place() const { return {address, port}; }
};

// What a rank ended with: "ok", or its error.
struct TcpEnd {
  std::string text;
  std::chrono::milliseconds after{0};
};

using TcpBody = std::function<void(int rank)>;

inline std::vector<TcpEnd> run_some(const std::vector<int>& ranks, const TcpBody& body) {
  std::vector<TcpEnd> ends(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto begin = std::chrono::steady_clock::now();
      try {
        body(ranks[i]);
        ends[i].text = "ok";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::setup);
        ends[i].text = error.what();
      }
      ends[i].after = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::steady_clock::now() - begin);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

inline std::vector<TcpEnd> run_tcp(int size, const TcpBody& body) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return run_some(ranks, body);
}

inline void expect_text(const TcpEnd& end, const std::string& text) {
  EXPECT_NE(end.text.find(text), std::string::npos) << end.text << "\nexpected: " << text;
}

inline void expect_ok(const std::vector<TcpEnd>& ends) {
  for (const TcpEnd& end : ends) EXPECT_EQ(end.text, "ok");
}

}  // namespace ubep::test
