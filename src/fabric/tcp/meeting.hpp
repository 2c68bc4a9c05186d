// How ranks of several hosts meet: a star over TCP. The first member listens on all addresses of
// its host until all others have arrived; these connect, and stay connected until the object dies.
//
// Whatever goes wrong at the first member (a difference, a missing or doubled rank, a rank that
// went away or cannot join) is told to every rank that has arrived. With a job key both sides prove
// that they know it, and nobody on the network can alter or replay what is said afterwards; without
// one anybody who can reach the port may join or disturb. Not a transport: set-up only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/shm/rendezvous.hpp"

namespace ubep {

// Not a port of torch (29500), and below those that the system hands out by itself.
inline constexpr int kDefaultTcpPort = 28237;
inline constexpr std::size_t kMostTcpMessage = 1024 * 1024;

struct TcpPlace {
  std::string address;  // of the first member's host: name, IPv4 or IPv6
  int port = 0;         // 0 = kDefaultTcpPort
};

class TcpMeeting {
 public:
  // Collective. Compares wire version, size, agreed fields and members. Throws Error{setup} that
  // names who is missing at the deadline, or what differs. One member alone opens no socket.
  TcpMeeting(const JoinRequest& request, const TcpPlace& place);
  ~TcpMeeting();
  TcpMeeting(const TcpMeeting&) = delete;
  TcpMeeting& operator=(const TcpMeeting&) = delete;

  // Collective, any number of times, before the request's deadline. Every member's message (up to
  // kMostTcpMessage) to all: [R], empty for ranks that are no members. Throws Error{setup} that
  // names who went away, could not join, or did not answer; then the meeting is at its end.
  std::vector<std::string> exchange(const std::string& mine);
  // Instead of a further exchange(), by a rank that cannot go on: that of all others throws with
  // "rank r cannot join: why". Nothing once the meeting is at its end. Takes two seconds at most.
  void decline(const std::string& why);

  // Instead of a TcpMeeting, by a rank that cannot even begin: those who wait are told why, at
  // once. Takes a few seconds at most when nobody is there to be told.
  static void decline(const JoinRequest& request, const TcpPlace& place, const std::string& why);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ubep
