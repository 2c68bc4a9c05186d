// Messages with descriptors over Unix sockets, with deadlines. Not a transport: rendezvous only.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace ubep {

using Deadline = std::chrono::steady_clock::time_point;

// One Unix SEQPACKET socket; closes itself.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // Abstract name. Throws Error{setup}: "in use" when another process listens there.
  static Socket listen(const std::string& abstract_name, int backlog);
  // Keeps trying until somebody listens. Not valid() after the deadline.
  static Socket connect(const std::string& abstract_name, Deadline deadline);
  // Not valid() after the deadline.
  Socket accept(Deadline deadline) const;

  bool valid() const { return fd_ >= 0; }
  bool same_user() const;  // the peer process runs under our user id
  int peer_pid() const;
  bool gone() const;  // valid, and its other end is closed

  // False when the peer is gone or the deadline passed. `fds` are duplicated into the peer.
  bool send(const void* data, std::size_t bytes, const std::vector<int>& fds = {}) const;
  // Receives exactly one message of at most `bytes`; returns its size, or -1.
  long receive(void* data, std::size_t bytes, std::vector<int>& fds, Deadline deadline) const;

 private:
  bool wait_for(short events, Deadline deadline) const;
  int fd_ = -1;
};

}  // namespace ubep
