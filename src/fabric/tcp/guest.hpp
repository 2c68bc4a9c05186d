// The other members' side of a TCP meeting.
#pragma once

#include <string>
#include <vector>

#include "fabric/tcp/meeting.hpp"
#include "fabric/tcp/stream.hpp"

namespace ubep {

class TcpGuest {
 public:
  TcpGuest(const JoinRequest& request, const TcpPlace& place) : request_(request), place_(place) {}

  // Returns once all ranks are at the host's.
  void join();
  std::vector<std::string> exchange(const std::string& mine);
  // Instead of exchange().
  void regret(const std::string& why);
  // Instead of join().
  void decline(const std::string& why);

 private:
  // False: not this meeting, or it has ended; come again until the deadline.
  bool introduce(const std::string& regret, Deadline deadline);
  void prove(const TcpFrame& frame, const JobKey::Nonce& nonce, const std::string& hello);
  TcpHeard await(TcpFrame& frame, std::size_t most, Deadline deadline);
  // The frame of this kind; throws what else there is, and tells the host if it does not know.
  std::string expect(TcpKind kind, std::size_t most);
  [[noreturn]] void judge(TcpHeard heard) const;
  [[noreturn]] void refused(const TcpFrame& frame) const;
  [[noreturn]] void no_answer() const;
  std::string where() const;
  std::string host() const;
  std::string job() const;

  const JoinRequest request_;
  const TcpPlace place_;
  TcpStream stream_;
  std::string problem_;    // what the last attempt ended with
  std::string sent_away_;  // why, when last
  bool listens_ = false;   // somebody does, there
};

}  // namespace ubep
