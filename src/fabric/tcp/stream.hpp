// TCP connections that never block: frames in and out, sealed with a key once there is one.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fabric/shm/job_key.hpp"
#include "fabric/shm/socket.hpp"
#include "fabric/tcp/wire.hpp"

namespace ubep {

// What a look at a connection found.
enum class TcpHeard {
  nothing,
  frame,
  end,      // the other side went away
  garbage,  // not a frame, or a longer one than may be
  altered,  // not what the other side sealed
};

// One connection; closes itself.
class TcpStream {
 public:
  using Text = std::shared_ptr<const std::string>;

  TcpStream() = default;
  explicit TcpStream(int fd);  // of a connected socket that does not block
  ~TcpStream();
  TcpStream(TcpStream&& other) noexcept { swap(other); }
  TcpStream& operator=(TcpStream&& other) noexcept {
    swap(other);
    return *this;
  }

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::string& peer() const { return peer_; }  // its numeric address

  // From here on every part of a frame carries a keyed hash of who says it (the side, the guest's
  // rank), its number and its content.
  void seal(const JobKey& key, JobKey::Side mine, int guest);

  // Takes a frame to be sent; flush() sends what goes without waiting.
  void put(TcpKind kind, std::string_view payload);
  void put(TcpKind kind, Text payload);
  void flush();
  bool has_output() const { return !out_.empty(); }
  bool broken() const { return broken_; }  // what was put could not be sent
  // No more output once all of it is sent.
  void finish();

  // Takes a frame of up to `most` bytes, once it is here whole.
  TcpHeard receive(TcpFrame& frame, std::size_t most);
  // Reads and forgets; false at the end.
  bool discard();

 private:
  void swap(TcpStream& other) noexcept;
  void put_part(Text part);
  bool fill(std::size_t bytes);
  bool unseal(std::size_t bytes);

  int fd_ = -1;
  std::string peer_;
  std::deque<Text> out_;
  std::size_t sent_ = 0;  // of the first of these
  bool broken_ = false;
  std::string in_;  // of one part of a frame: header or payload
  TcpHeader header_ = {};
  bool has_header_ = false;
  bool ended_ = false;
  JobKey key_;
  JobKey::Stamp out_stamp_ = {};
  JobKey::Stamp in_stamp_ = {};
};

// What to wait for.
struct TcpWatch {
  int fd = -1;  // of a listener or stream; < 0 = none
  bool for_input = true;
  bool for_output = false;
  bool ready = false;  // the answer
};
// Returns once one is ready, or at the deadline: then false.
bool wait_for(std::span<TcpWatch> watches, Deadline deadline);
// Sleeps; not beyond the deadline.
void pause_until(Deadline deadline, std::chrono::milliseconds time);

// On all addresses of this host. Another set-up may hold the port for a moment: that is waited for.
// Throws Error{setup} when the port stays in use.
int listen_on(int port, int backlog, Deadline deadline);
// Not valid() when nobody is there.
TcpStream accept_from(int listener);
// Tries until somebody listens. Not valid() at the deadline; `problem` says why. Throws
// Error{setup} when there is no such host.
TcpStream connect_to(const std::string& address, int port, Deadline deadline, std::string& problem);

// "address:port"
std::string place_text(const std::string& address, int port);

}  // namespace ubep
