// Both sides of a meeting prove that they know the job key before a descriptor is handed over.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "fabric/shm/messages.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

// With the rank: a proof that was heard is of no use to pass for another one.
std::string meeting_of(const JoinRequest& request, int guest) {
  return fmt::format("{}|{}|{}|{}", request.size, rank_list(request.members), guest, request.job);
}

struct ChallengeText {
  JobKey::Nonce nonce;
  JobKey::Proof proof;
};
static_assert(sizeof(ChallengeText) <= sizeof(Order::text));

void close_all(std::vector<int>& fds) {
  for (int fd : fds) ::close(fd);
  fds.clear();
}

}  // namespace

bool challenge_guest(const JoinRequest& request, const Socket& guest, const Hello& hello,
                     std::vector<int>& fds) {
  if (hello.keyed != 1) {
    (void)send_refusal(guest,
                       fmt::format("rank {} has a job key, rank {} gave none (Bootstrap::key, "
                                   "UBEP_JOB_KEY)",
                                   request.rank, hello.rank));
    return false;
  }
  JobKey::Claim claim{.side = JobKey::Side::host,
                      .meeting = meeting_of(request, hello.rank),
                      .guest = hello.nonce,
                      .host = fresh_nonce()};
  const ChallengeText text{claim.host, request.key.prove(claim)};
  Order order = {};
  order.kind = Order::Kind::challenge;
  std::memcpy(order.text, &text, sizeof(text));
  if (!guest.send(&order, sizeof(order))) return false;
  Response response = {};
  close_all(fds);
  const auto soon = std::chrono::steady_clock::now() + kHearing;
  const long got =
      guest.receive(&response, sizeof(response), fds, std::min(request.deadline, soon));
  claim.side = JobKey::Side::guest;
  if (got == sizeof(response) && response.magic == kMagic &&
      request.key.verify(claim, response.proof)) {
    return true;
  }
  close_all(fds);
  (void)send_refusal(guest, "another job key");
  return false;
}

void answer_challenge(const JoinRequest& request, const Socket& host, const Order& challenge,
                      const Hello& mine, const std::vector<int>& fds) {
  ChallengeText text;
  std::memcpy(&text, challenge.text, sizeof(text));
  JobKey::Claim claim{.side = JobKey::Side::host,
                      .meeting = meeting_of(request, mine.rank),
                      .guest = mine.nonce,
                      .host = text.nonce};
  if (challenge.kind != Order::Kind::challenge || !request.key.verify(claim, text.proof)) {
    throw Error(ErrorCode::setup,
                fmt::format("rank {}: rank {} (process {}) has {} job key, expected the one that "
                            "this rank has",
                            mine.rank, request.members.front(), host.peer_pid(),
                            challenge.kind == Order::Kind::challenge ? "another" : "no"));
  }
  claim.side = JobKey::Side::guest;
  const Response response{kMagic, request.key.prove(claim)};
  (void)host.send(&response, sizeof(response), fds);  // if it is gone: the next message says so
}

}  // namespace ubep
