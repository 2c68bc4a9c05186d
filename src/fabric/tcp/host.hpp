// The first member's side of a TCP meeting. It hears all connections at once: who says nothing, or
// what is no hello, has two seconds and holds nobody up.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fabric/tcp/meeting.hpp"
#include "fabric/tcp/stream.hpp"

namespace ubep {

class TcpHost {
 public:
  TcpHost(const JoinRequest& request, const TcpPlace& place);
  ~TcpHost();
  TcpHost(const TcpHost&) = delete;
  TcpHost& operator=(const TcpHost&) = delete;

  // Returns once all ranks are here. Each of these throws once it has told the others why.
  void gather();
  std::vector<std::string> exchange(const std::string& mine);
  // Tells those who are here and, as long as it listens, those who come within a second.
  void refuse_all(const std::string& why);
  // Instead of gather().
  void refuse_guests(const std::string& why);

 private:
  enum class Stage { hello, proof, leaving };
  // Connected, but not one of the ranks that have arrived.
  struct Visitor {
    TcpStream stream;
    Deadline until;
    Stage stage = Stage::hello;
    TcpHello hello = {};
    JobKey::Claim claim = {};
  };
  struct Peer {
    TcpStream stream;
    int pid = 0;
    std::optional<std::string> message;  // of the exchange under way
  };

  // The ranks that join; the first member is this one.
  std::span<const int> others() const { return std::span(request_.members).subspan(1); }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  bool has_arrived(int rank) const;
  std::vector<int> missing() const;
  std::string told(int rank) const;
  std::string job() const;
  std::string refused_text() const;

  void gather_all();
  bool look(Deadline deadline);
  void let_in();
  void stop_listening();
  bool hear(Visitor& visitor);
  void step(Visitor& visitor, const TcpFrame& frame);
  void introduce(Visitor& visitor);
  void challenge(Visitor& visitor, const std::string& hello);
  void take_proof(Visitor& visitor, const TcpFrame& frame);
  void arrive(Visitor& visitor);
  std::string complaint_about(const TcpHello& hello, const TcpStream& stream) const;
  void send_away(Visitor& visitor, TcpKind kind, const std::string& why);
  void hear(int rank);

  void send_all(TcpKind kind, const TcpStream::Text& payload);
  void flush_all();

  const JoinRequest request_;
  const TcpPlace place_;
  int listener_ = -1;
  std::vector<Visitor> visitors_;
  std::vector<Peer> peers_;  // by rank
  bool exchanging_ = false;
  std::string refusal_;  // what all others are told; empty = they may join
  std::set<int> heard_it_;
  int strangers_ = 0;  // that do not know the job key
  int others_jobs_ = 0;
  std::string other_members_;  // what the last one said that had come for another set of members
};

}  // namespace ubep
