// What goes over the rendezvous socket. The first fields are the same in all wire versions, so that
// a difference can be told; a refusal has its form in all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "fabric/shm/job_key.hpp"
#include "fabric/shm/rendezvous.hpp"
#include "fabric/shm/socket.hpp"

namespace ubep {

inline constexpr std::uint64_t kMagic = 0x31'50'45'42'55;  // "UBEP1"
inline constexpr auto kHearing = std::chrono::seconds(2);  // of who has connected, to say who it is
// Of the host (the first member), for ranks to be told of an error.
inline constexpr auto kLinger = std::chrono::seconds(1);

struct Hello {
  std::uint64_t magic;
  std::uint32_t wire_version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::uint64_t keyed;  // 1 = I have a job key, and send my descriptors once you have proved yours
  JobKey::Nonce nonce;
  std::uint64_t fields[kMaxAgreedFields];
};

// From the host to the others.
struct Order {
  enum class Kind : std::uint32_t { refuse, segments, probe, go, challenge };
  Kind kind;
  std::int32_t cpu;     // probe: where the host runs
  std::uint64_t first;  // probe: first flag value; segments: the group's number
  double one_way_ns;    // go: this rank's result
  char text[472];       // refuse; challenge: the host's random number, its proof
};
static_assert(sizeof(Order) == 496);

// From a guest, after the host's challenge; with its descriptors.
struct Response {
  std::uint64_t magic;
  JobKey::Proof proof;
};

// From a rank that cannot join to the host: instead of its Hello, or of its answer to a probe.
struct Regret {
  std::uint64_t magic;
  std::uint32_t wire_version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  char text[472];
};
static_assert(sizeof(Regret) == 496 && sizeof(Regret) != sizeof(Hello));

// With all ranks as members where it names none.
JoinRequest with_members(const JoinRequest& request);
// Each set of members has its own: who comes early for the next one does not disturb the last.
std::string socket_name(const JoinRequest& request);
// Job keys (handshake.cpp). The host: proves that it knows the key, and takes the guest's proof and
// `fds`; false = the guest does not know it. The guest: the reverse; throws Error{setup}.
bool challenge_guest(const JoinRequest& request, const Socket& guest, const Hello& hello,
                     std::vector<int>& fds);
void answer_challenge(const JoinRequest& request, const Socket& host, const Order& challenge,
                      const Hello& mine, const std::vector<int>& fds);
std::string rank_list(const std::vector<int>& ranks);
std::string job_text(const JoinRequest& request);
std::string job_text(const JoinRequest& request, const std::string& place);
// False when the other side is gone.
bool send_refusal(const Socket& socket, const std::string& text);
bool send_regret(const Socket& socket, const JoinRequest& request, const std::string& text);
// The regret in a message, if it is one.
std::optional<Regret> regret_in(std::span<const std::byte> message);

}  // namespace ubep
