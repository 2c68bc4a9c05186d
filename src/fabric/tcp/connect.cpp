// Listening, connecting and waiting.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/system_limits.hpp"
#include "fabric/tcp/stream.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kAttempt = std::chrono::seconds(2);  // to reach one address
constexpr auto kBusyPort = std::chrono::seconds(5);
constexpr milliseconds kShortest{10};  // between two attempts
constexpr milliseconds kLongest{250};

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::setup, text); }

void set_option(int fd, int level, int name, int value) {
  (void)::setsockopt(fd, level, name, &value, sizeof(value));  // the defaults serve, too
}

// A host that lost its power says no more: then within twenty seconds.
void prepare(int fd) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

int open_socket(int family) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool scarce = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM);
  if (scarce) fail(fmt::format("cannot open a socket: {}", explain(errno)));
  return fd;
}

std::string numeric(const sockaddr_storage& address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof(text),
                    nullptr, 0, NI_NUMERICHOST) != 0) {
    return "unknown";
  }
  constexpr std::string_view kMapped = "::ffff:";  // IPv4, over a socket that takes both
  const std::string_view name(text);
  return std::string(name.starts_with(kMapped) ? name.substr(kMapped.size()) : name);
}

// 0, or the error.
int bind_and_listen(int fd, int family, int port, int backlog) {
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  int done = -1;
  if (family == AF_INET6) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<std::uint16_t>(port));
    done = ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any));
  } else {
    sockaddr_in any = {};
    any.sin_family = AF_INET;
    any.sin_port = htons(static_cast<std::uint16_t>(port));
    done = ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any));
  }
  return done == 0 && ::listen(fd, backlog) == 0 ? 0 : errno;
}

// The listener, or the negative of the error.
int try_to_listen(int port, int backlog) {
  int error = EAFNOSUPPORT;
  for (const int family : {AF_INET6, AF_INET}) {
    const int fd = open_socket(family);
    if (fd < 0) continue;
    error = bind_and_listen(fd, family, port, backlog);
    if (error == 0) return fd;
    ::close(fd);
    if (error == EADDRINUSE || error == EACCES) break;
  }
  return -error;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Null while the name service does not answer.
Addresses resolve(const std::string& address, int port, std::string& problem) {
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &list);
  if (error == 0) return Addresses(list);
  problem = fmt::format("the host '{}' (Bootstrap::address, UBEP_ADDRESS) cannot be found: {}",
                        address, error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  if (error != EAI_AGAIN) fail(problem);
  return nullptr;
}

// On a port that the system hands out, a connection to nobody may find itself.
bool is_own_echo(int fd) {
  sockaddr_storage here = {};
  sockaddr_storage there = {};
  socklen_t here_length = sizeof(here);
  socklen_t there_length = sizeof(there);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_length) == 0 &&
         here_length == there_length && std::memcmp(&here, &there, here_length) == 0;
}

// The error of an attempt, 0 = connected.
int attempt(int fd, const addrinfo& to, Deadline deadline) {
  if (::connect(fd, to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    TcpWatch watch{.fd = fd, .for_input = false, .for_output = true};
    if (!wait_for({&watch, 1}, std::min(deadline, steady_clock::now() + kAttempt))) {
      return ETIMEDOUT;
    }
    int error = 0;
    socklen_t length = sizeof(error);
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    if (error != 0) return error;
  }
  return is_own_echo(fd) ? ECONNREFUSED : 0;
}

TcpStream try_to_connect(const addrinfo* list, Deadline deadline, std::string& problem) {
  for (const addrinfo* to = list; to != nullptr; to = to->ai_next) {
    const int fd = open_socket(to->ai_family);
    const int error = fd < 0 ? errno : attempt(fd, *to, deadline);
    if (error == 0) return TcpStream(fd);
    problem = std::strerror(error);
    if (fd >= 0) ::close(fd);
  }
  return {};
}

}  // namespace

TcpStream::TcpStream(int fd) : fd_(fd) {
  prepare(fd);
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  const bool known = ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  peer_ = known ? numeric(address, length) : "unknown";
}

bool wait_for(std::span<TcpWatch> watches, Deadline deadline) {
  std::vector<pollfd> entries;
  for (const TcpWatch& watch : watches) {
    const int events = (watch.for_input ? POLLIN : 0) | (watch.for_output ? POLLOUT : 0);
    entries.push_back({events == 0 ? -1 : watch.fd, static_cast<short>(events), 0});
  }
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    const int time = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    const int count = ::poll(entries.data(), entries.size(), time);
    if (count < 0 && errno != EINTR) fail(fmt::format("poll: {}", std::strerror(errno)));
    if (count > 0 || left.count() <= 0) {
      for (std::size_t i = 0; i < entries.size(); ++i) watches[i].ready = entries[i].revents != 0;
      return count > 0;
    }
  }
}

void pause_until(Deadline deadline, milliseconds time) {
  (void)wait_for({}, std::min(deadline, steady_clock::now() + time));
}

int listen_on(int port, int backlog, Deadline deadline) {
  const Deadline patience = std::min(deadline, steady_clock::now() + kBusyPort);
  for (;;) {
    const int fd = try_to_listen(port, backlog);
    if (fd >= 0) return fd;
    if (fd != -EADDRINUSE || steady_clock::now() >= patience) {
      fail(
          fmt::format("cannot listen on port {} for ranks of other hosts: {}: choose another port "
                      "for all ranks (Bootstrap::port, UBEP_PORT)",
                      port, std::strerror(-fd)));
    }
    pause_until(patience, kShortest * 5);
  }
}

TcpStream accept_from(int listener) {
  const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) return TcpStream(fd);
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) fail(explain(errno));
  return {};  // it has gone again
}

TcpStream connect_to(const std::string& address, int port, Deadline deadline,
                     std::string& problem) {
  milliseconds pause = kShortest;
  Addresses addresses;
  for (int attempts = 0;; ++attempts) {
    if (attempts % 16 == 0) addresses = nullptr;  // a name may come to mean another host
    if (addresses == nullptr) addresses = resolve(address, port, problem);
    TcpStream stream = try_to_connect(addresses.get(), deadline, problem);
    if (stream.valid() || steady_clock::now() >= deadline) return stream;
    pause_until(deadline, pause);
    pause = std::min(pause * 2, kLongest);
  }
}

std::string place_text(const std::string& address, int port) {
  const bool brackets = address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", brackets ? "[" : "", address, brackets ? "]" : "", port);
}

}  // namespace ubep
