// What goes over a TCP meeting's connections: frames of a header and a payload, all numbers in
// little-endian order. The header, refusals and the first fields of a hello are the same in all
// wire versions, so that a difference can be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/shm/job_key.hpp"
#include "fabric/shm/rendezvous.hpp"

namespace ubep {

enum class TcpKind : std::uint32_t {
  // From the host (the first member).
  refuse = 0,     // why; the guest's set-up is over
  later = 1,      // why; the guest may come again: this is not the meeting that it looks for
  challenge = 2,  // the host's random number and its proof
  accepted = 3,   // a rank has arrived
  begun = 4,      // all ranks have
  results = 5,    // of an exchange: of each member, in their order, length and message
  // From a guest.
  hello = 16,
  proof = 17,
  message = 18,  // of an exchange
  regret = 19,   // why it cannot go on
};

struct TcpFrame {
  TcpKind kind = TcpKind::refuse;
  std::string payload;
};

inline constexpr std::size_t kTcpHeaderBytes = 12;       // magic, kind, bytes of the payload
inline constexpr std::size_t kMostTcpHello = 64 * 1024;  // before anybody has proved anything
inline constexpr std::size_t kMostTcpText = 4096;

std::string encode_header(TcpKind kind, std::size_t bytes);
struct TcpHeader {
  TcpKind kind;
  std::uint32_t bytes;
};
// Nothing: not from UBEP.
std::optional<TcpHeader> decode_header(std::string_view text);

struct TcpHello {
  // The same in all wire versions.
  std::uint32_t wire_version = 0;
  int rank = 0;
  int size = 0;
  std::string job;
  // Of this version.
  int pid = 0;
  bool keyed = false;
  JobKey::Nonce nonce = {};
  std::vector<int> members;
  std::uint64_t fields[kMaxAgreedFields] = {};
  std::string regret;  // why it cannot join; empty = it joins
};
std::string encode_hello(const JoinRequest& request, const JobKey::Nonce& nonce,
                         const std::string& regret);
// What both sides prove the key for: all that the guest has said.
std::string tcp_claim(std::string_view hello);
// With nothing behind the job's name where the version is another one. Nothing: not a hello.
std::optional<TcpHello> decode_hello(std::string_view text);

struct TcpChallenge {
  JobKey::Nonce nonce;
  JobKey::Proof proof;
};
std::string encode_challenge(const TcpChallenge& challenge);
std::optional<TcpChallenge> decode_challenge(std::string_view text);
std::string encode_proof(const JobKey::Proof& proof);
std::optional<JobKey::Proof> decode_proof(std::string_view text);

// `messages`: [R]. Nothing: lengths that do not fit.
std::string encode_results(const std::vector<int>& members,
                           const std::vector<std::string>& messages);
std::optional<std::vector<std::string>> decode_results(std::string_view text,
                                                       const JoinRequest& request);

// Of another process: cut, and without what could steer a terminal.
std::string printable(std::string_view text);

}  // namespace ubep
