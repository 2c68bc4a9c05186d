#include "fabric/tcp/guest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/group_config.hpp"
#include "fabric/shm/messages.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{50};  // before it comes again
constexpr std::chrono::seconds kSeek{2};         // for the host, by a rank that has only bad news
// Of each member, its length and message.
constexpr std::size_t kMostResults = kMaxRanks * (kMostTcpMessage + 4);

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::setup, text); }

}  // namespace

std::string TcpGuest::where() const { return place_text(place_.address, place_.port); }

std::string TcpGuest::host() const {
  return fmt::format("rank {} ({})", request_.members.front(), where());
}

std::string TcpGuest::job() const { return job_text(request_, where()); }

void TcpGuest::refused(const TcpFrame& frame) const {
  fail(fmt::format("rank {}: refused by rank {}: {}", request_.rank, request_.members.front(),
                   printable(frame.payload)));
}

void TcpGuest::no_answer() const {
  fail(fmt::format("rank {}: timeout: rank {} did not arrive for {}: {}{}", request_.rank,
                   request_.members.front(), job(), sent_away_.empty() ? problem_ : sent_away_,
                   listens_ ? " (Bootstrap::port, UBEP_PORT)" : ""));
}

void TcpGuest::join() {
  for (;;) {
    stream_ = connect_to(place_.address, place_.port, request_.deadline, problem_);
    if (stream_.valid()) {
      listens_ = true;
      if (introduce({}, request_.deadline)) break;
    }
    if (steady_clock::now() >= request_.deadline) no_answer();
    pause_until(request_.deadline, kPause);
  }
  (void)expect(TcpKind::begun, 0);
}

TcpHeard TcpGuest::await(TcpFrame& frame, std::size_t most, Deadline deadline) {
  for (;;) {
    stream_.flush();
    const TcpHeard heard = stream_.receive(frame, most);
    if (heard != TcpHeard::nothing) return heard;
    TcpWatch watch{.fd = stream_.fd(), .for_output = stream_.has_output()};
    if (!wait_for({&watch, 1}, deadline)) return TcpHeard::nothing;
  }
}

bool TcpGuest::introduce(const std::string& regret, Deadline deadline) {
  const JobKey::Nonce nonce = fresh_nonce();
  const std::string hello = encode_hello(request_, nonce, regret);
  stream_.put(TcpKind::hello, hello);
  TcpFrame frame;
  TcpHeard heard = await(frame, kMostTcpText, deadline);
  if (heard == TcpHeard::frame && frame.kind == TcpKind::challenge && request_.key.given()) {
    prove(frame, nonce, hello);
    heard = await(frame, kMostTcpText, deadline);
  } else if (heard == TcpHeard::frame && frame.kind == TcpKind::accepted && request_.key.given()) {
    fail(fmt::format("rank {}: {} has no job key, expected the one that this rank has",
                     request_.rank, host()));
  }
  if (heard == TcpHeard::frame && frame.kind == TcpKind::accepted) return true;
  if (heard == TcpHeard::frame && frame.kind == TcpKind::refuse) refused(frame);
  if (heard == TcpHeard::frame && frame.kind == TcpKind::later) {
    sent_away_ = printable(frame.payload);
    return false;
  }
  if (heard == TcpHeard::altered) judge(heard);
  if (heard == TcpHeard::frame || heard == TcpHeard::garbage) {
    fail(
        fmt::format("rank {}: at {} listens something that is no rank of UBEP: choose another "
                    "port for all ranks (Bootstrap::port, UBEP_PORT)",
                    request_.rank, where()));
  }
  // The listener of an earlier set-up closed under us, or somebody says nothing.
  problem_ =
      heard == TcpHeard::end ? "who listens there hung up" : "who listens there says nothing";
  return false;
}

// The host first: until it has proved itself it is told nothing that is worth something.
void TcpGuest::prove(const TcpFrame& frame, const JobKey::Nonce& nonce, const std::string& hello) {
  const auto challenge = decode_challenge(frame.payload);
  JobKey::Claim claim{.side = JobKey::Side::host,
                      .meeting = tcp_claim(hello),
                      .guest = nonce,
                      .host = challenge ? challenge->nonce : JobKey::Nonce{}};
  if (!challenge || !request_.key.verify(claim, challenge->proof)) {
    fail(
        fmt::format("rank {}: {} has another job key, expected the one that this rank has, or "
                    "what this rank said was altered on its way",
                    request_.rank, host()));
  }
  claim.side = JobKey::Side::guest;
  stream_.put(TcpKind::proof, encode_proof(request_.key.prove(claim)));
  stream_.seal(request_.key.session(claim), JobKey::Side::guest, request_.rank);
}

// Throws what is wrong with the host.
void TcpGuest::judge(TcpHeard heard) const {
  const char* what = "sent an unexpected message";
  if (heard == TcpHeard::nothing) what = "did not answer";
  if (heard == TcpHeard::end) what = "went away";
  if (heard == TcpHeard::altered) {
    fail(
        fmt::format("rank {}: what {} sent was altered on its way: its hash does not fit the job "
                    "key",
                    request_.rank, host()));
  }
  fail(fmt::format("rank {}: {} {} during set-up of {}", request_.rank, host(), what, job()));
}

std::string TcpGuest::expect(TcpKind kind, std::size_t most) {
  // The host waits for the last rank until its own deadline and then says so: leave it time to.
  const Deadline patience = request_.deadline + std::chrono::seconds(2);
  TcpFrame frame;
  const TcpHeard heard = await(frame, std::max(most, kMostTcpText), patience);
  if (heard == TcpHeard::frame && frame.kind == kind && frame.payload.size() <= most) {
    return std::move(frame.payload);
  }
  if (heard == TcpHeard::frame && frame.kind == TcpKind::refuse) refused(frame);
  try {
    judge(heard);
  } catch (const Error& error) {
    if (heard != TcpHeard::end) regret(error.what());
    throw;
  }
}

std::vector<std::string> TcpGuest::exchange(const std::string& mine) {
  stream_.put(TcpKind::message, mine);
  auto messages = decode_results(expect(TcpKind::results, kMostResults), request_);
  if (messages) return std::move(*messages);
  const std::string text = fmt::format("{} sent messages of other lengths than it says", host());
  regret(text);
  fail(fmt::format("rank {}: {}", request_.rank, text));
}

void TcpGuest::regret(const std::string& why) {
  const Deadline soon = steady_clock::now() + kSeek;
  stream_.put(TcpKind::regret, std::string_view(why).substr(0, kMostTcpText));
  for (stream_.flush(); stream_.has_output(); stream_.flush()) {
    TcpWatch watch{.fd = stream_.fd(), .for_input = false, .for_output = true};
    if (!wait_for({&watch, 1}, soon)) break;
  }
  stream_.finish();
}

void TcpGuest::decline(const std::string& why) {
  const Deadline soon = std::min(request_.deadline, steady_clock::now() + kSeek);
  for (;;) {
    stream_ = connect_to(place_.address, place_.port, soon, problem_);
    if (!stream_.valid() || introduce(why, soon) || steady_clock::now() >= soon) return;
    pause_until(soon, kPause);
  }
}

}  // namespace ubep
