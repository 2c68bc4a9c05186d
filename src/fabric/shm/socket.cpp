#include "fabric/shm/socket.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/group_config.hpp"
#include "base/system_limits.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

int open_socket() {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    throw Error(ErrorCode::setup, fmt::format("cannot open a socket: {}", explain(errno)));
  }
  return fd;
}

struct Address {
  sockaddr_un un = {};
  socklen_t length = 0;
};

Address address_of(const std::string& abstract_name) {
  Address address;
  address.un.sun_family = AF_UNIX;
  const std::size_t n = std::min(abstract_name.size(), sizeof(address.un.sun_path) - 1);
  std::memcpy(address.un.sun_path + 1, abstract_name.data(), n);  // [0] stays 0: abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

constexpr std::size_t kMaxFds = 2 * kMaxRanks;  // segments and inboxes

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}
Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket Socket::listen(const std::string& abstract_name, int backlog) {
  Socket socket(open_socket());
  const Address address = address_of(abstract_name);
  if (::bind(socket.fd_, reinterpret_cast<const sockaddr*>(&address.un), address.length) != 0 ||
      ::listen(socket.fd_, backlog) != 0) {
    throw Error(ErrorCode::setup,
                fmt::format("rendezvous '{}': {}", abstract_name,
                            errno == EADDRINUSE ? "in use: another rank 0 of this job is there"
                                                : std::strerror(errno)));
  }
  return socket;
}

Socket Socket::connect(const std::string& abstract_name, Deadline deadline) {
  const Address address = address_of(abstract_name);
  for (;;) {
    Socket socket(open_socket());
    if (::connect(socket.fd_, reinterpret_cast<const sockaddr*>(&address.un), address.length) ==
        0) {
      return socket;
    }
    if (std::chrono::steady_clock::now() >= deadline) return {};
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

bool Socket::wait_for(short events, Deadline deadline) const {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{fd_, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<long>(left.count(), 0, 60000)));
    if (ready > 0) return true;
    if (ready == 0 && left.count() <= 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

Socket Socket::accept(Deadline deadline) const {
  if (!wait_for(POLLIN, deadline)) return {};
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE)) throw Error(ErrorCode::setup, explain(errno));
  return Socket(fd);
}

bool Socket::same_user() const {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

int Socket::peer_pid() const {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.pid : -1;
}

bool Socket::gone() const {
  pollfd entry{fd_, POLLRDHUP, 0};
  return valid() && ::poll(&entry, 1, 0) > 0;
}

bool Socket::send(const void* data, std::size_t bytes, const std::vector<int>& fds) const {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return ::sendmsg(fd_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

long Socket::receive(void* data, std::size_t bytes, std::vector<int>& fds,
                     Deadline deadline) const {
  if (!wait_for(POLLIN, deadline)) return -1;
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  // The other end left something unread when it closed; its last words are here all the same.
  if (got < 0 && errno == ECONNRESET) got = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return -1;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const std::size_t first = fds.size();
    fds.resize(first + count);
    std::memcpy(fds.data() + first, CMSG_DATA(header), count * sizeof(int));
  }
  if (got > 0 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) return got;
  for (int fd : fds) ::close(fd);  // nobody will look at them
  fds.clear();
  // With room for all in `control`, only this process's limit can have cut the descriptors.
  if ((message.msg_flags & MSG_CTRUNC) != 0) throw Error(ErrorCode::setup, explain(EMFILE));
  return -1;
}

}  // namespace ubep
