#include "fabric/tcp/host.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/group_config.hpp"
#include "base/system_limits.hpp"
#include "fabric/shm/messages.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMostVisitors = 2 * kMaxRanks;  // then the one that came first must go

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::setup, text); }

}  // namespace

TcpHost::TcpHost(const JoinRequest& request, const TcpPlace& place)
    : request_(request), place_(place), peers_(static_cast<std::size_t>(request.size)) {}

TcpHost::~TcpHost() { stop_listening(); }

bool TcpHost::has_arrived(int rank) const {
  return rank >= 0 && rank < request_.size && peer(rank).stream.valid();
}

std::vector<int> TcpHost::missing() const {
  std::vector<int> ranks;
  for (int r : others()) {
    if (!has_arrived(r)) ranks.push_back(r);
  }
  return ranks;
}

std::string TcpHost::told(int rank) const {
  return fmt::format("rank {} ({}, process {})", rank, peer(rank).stream.peer(), peer(rank).pid);
}

std::string TcpHost::job() const {
  return job_text(request_, fmt::format("port {} of {}", place_.port, place_.address));
}

std::string TcpHost::refused_text() const {
  std::string text;
  if (strangers_ > 0) {
    text += fmt::format("; {} that do not know the job key were refused", strangers_);
  }
  if (others_jobs_ > 0) text += fmt::format("; {} of other jobs were sent away", others_jobs_);
  if (!other_members_.empty()) text += "; " + other_members_;
  return text;
}

void TcpHost::stop_listening() {
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
}

void TcpHost::gather() {
  try {
    gather_all();
  } catch (const std::exception& error) {
    refuse_all(error.what());
    throw;
  }
}

void TcpHost::gather_all() {
  listener_ = listen_on(place_.port, request_.size + 8, request_.deadline);
  while (!missing().empty()) {
    if (look(request_.deadline)) continue;
    fail(fmt::format("rank {}: timeout: rank {} did not arrive for {}{}", request_.rank,
                     rank_list(missing()), job(), refused_text()));
  }
  stop_listening();   // the next set-up on this port cannot meet this one
  visitors_.clear();  // who has come early for it comes again
  send_all(TcpKind::begun, std::make_shared<const std::string>());
  flush_all();
}

// Waits for something to happen and hears it. False after the deadline.
bool TcpHost::look(Deadline deadline) {
  Deadline soon = deadline;
  std::vector<TcpWatch> watches{{.fd = listener_}};
  for (const Visitor& visitor : visitors_) {
    watches.push_back({.fd = visitor.stream.fd(), .for_output = visitor.stream.has_output()});
    soon = std::min(soon, visitor.until);
  }
  const std::size_t first_peer = watches.size();
  for (int r : others()) {
    watches.push_back({.fd = peer(r).stream.fd(), .for_output = peer(r).stream.has_output()});
  }
  (void)wait_for(watches, soon);
  for (std::size_t i = 0; i < others().size(); ++i) {
    if (watches[first_peer + i].ready) hear(others()[i]);
  }
  const auto now = steady_clock::now();
  for (std::size_t i = 0; i < visitors_.size(); ++i) {
    Visitor& visitor = visitors_[i];
    const bool stays = (!watches[1 + i].ready || hear(visitor)) && now < visitor.until;
    if (stays || !visitor.stream.valid()) continue;
    if (visitor.stage == Stage::proof) ++strangers_;
    visitor.stream = TcpStream();
  }
  std::erase_if(visitors_, [](const Visitor& visitor) { return !visitor.stream.valid(); });
  if (watches[0].ready) let_in();
  return now < deadline;
}

void TcpHost::let_in() {
  TcpStream stream = accept_from(listener_);
  if (!stream.valid()) return;
  if (visitors_.size() >= kMostVisitors) visitors_.erase(visitors_.begin());
  visitors_.push_back({.stream = std::move(stream), .until = steady_clock::now() + kHearing});
}

// False when it has gone, or is none of ours.
bool TcpHost::hear(Visitor& visitor) {
  visitor.stream.flush();
  while (visitor.stream.valid()) {
    if (visitor.stage == Stage::leaving) {
      visitor.stream.finish();
      return visitor.stream.discard();
    }
    TcpFrame frame;
    const TcpHeard heard = visitor.stream.receive(frame, kMostTcpHello);
    if (heard == TcpHeard::nothing) return true;
    if (heard != TcpHeard::frame) return false;
    step(visitor, frame);
  }
  return true;
}

void TcpHost::step(Visitor& visitor, const TcpFrame& frame) {
  if (visitor.stage == Stage::proof) return take_proof(visitor, frame);
  auto hello = frame.kind == TcpKind::hello ? decode_hello(frame.payload) : std::nullopt;
  if (!hello) {
    visitor.stream = TcpStream();
    return;
  }
  visitor.hello = std::move(*hello);
  if (visitor.hello.job != request_.job) {
    ++others_jobs_;
    return send_away(visitor, TcpKind::later, "another job meets there");
  }
  if (!request_.key.given()) return arrive(visitor);
  // Who does not know the key cannot end the set-up, whatever it says.
  if (visitor.hello.wire_version == kWireVersion && visitor.hello.keyed) {
    return challenge(visitor, frame.payload);
  }
  ++strangers_;
  send_away(visitor, TcpKind::refuse,
            visitor.hello.wire_version != kWireVersion
                ? complaint_about(visitor.hello, visitor.stream)
                : fmt::format("rank {} has a job key, rank {} gave none (Bootstrap::key, "
                              "UBEP_JOB_KEY)",
                              request_.rank, visitor.hello.rank));
}

void TcpHost::challenge(Visitor& visitor, const std::string& hello) {
  // With all that the guest has said: nobody can have altered it on its way.
  visitor.claim = {.side = JobKey::Side::host,
                   .meeting = tcp_claim(hello),
                   .guest = visitor.hello.nonce,
                   .host = fresh_nonce()};
  visitor.stream.put(
      TcpKind::challenge,
      encode_challenge({.nonce = visitor.claim.host, .proof = request_.key.prove(visitor.claim)}));
  visitor.stream.flush();
  visitor.stage = Stage::proof;
  visitor.until = steady_clock::now() + kHearing;
}

void TcpHost::take_proof(Visitor& visitor, const TcpFrame& frame) {
  const auto proof = frame.kind == TcpKind::proof ? decode_proof(frame.payload) : std::nullopt;
  visitor.claim.side = JobKey::Side::guest;
  if (!proof || !request_.key.verify(visitor.claim, *proof)) {
    ++strangers_;
    return send_away(visitor, TcpKind::refuse, "another job key");
  }
  visitor.stream.seal(request_.key.session(visitor.claim), JobKey::Side::host, visitor.hello.rank);
  arrive(visitor);
}

void TcpHost::arrive(Visitor& visitor) {
  const TcpHello& hello = visitor.hello;
  if (hello.wire_version == kWireVersion && hello.size == request_.size &&
      hello.members != request_.members) {
    other_members_ = fmt::format("rank {} ({}, process {}) has members {}", hello.rank,
                                 visitor.stream.peer(), hello.pid, rank_list(hello.members));
    return send_away(
        visitor, TcpKind::later,
        fmt::format("rank {} has members {}, rank {} has {}", request_.rank,
                    rank_list(request_.members), hello.rank, rank_list(hello.members)));
  }
  if (!refusal_.empty()) {
    if (heard_it_.insert(hello.rank).second) {
      return send_away(visitor, TcpKind::refuse, refusal_);
    }
    return send_away(visitor, TcpKind::later, "the last set-up is about to end");
  }
  std::string complaint = complaint_about(hello, visitor.stream);
  if (!complaint.empty()) {
    // Another one that says it is a rank which has arrived does not speak for it.
    if (!has_arrived(hello.rank)) heard_it_.insert(hello.rank);
    send_away(visitor, TcpKind::refuse, complaint);
    fail(complaint);
  }
  Peer& guest = peer(hello.rank);
  guest.stream = std::move(visitor.stream);
  guest.pid = hello.pid;
  guest.stream.put(TcpKind::accepted, "");
  guest.stream.flush();
}

std::string TcpHost::complaint_about(const TcpHello& hello, const TcpStream& stream) const {
  if (hello.wire_version != kWireVersion) {
    return fmt::format("wire version differs: rank {} has {}, rank {} has {}", request_.rank,
                       kWireVersion, hello.rank, hello.wire_version);
  }
  if (!hello.regret.empty()) {
    return fmt::format("rank {} ({}, process {}) cannot join: {}", hello.rank, stream.peer(),
                       hello.pid, printable(hello.regret));
  }
  if (hello.size != request_.size) {
    return fmt::format("size differs: rank {} has {}, rank {} has {}", request_.rank, request_.size,
                       hello.rank, hello.size);
  }
  if (!request_.key.given() && hello.keyed) {
    return fmt::format("rank {} has a job key, rank {} has none", hello.rank, request_.rank);
  }
  const auto expected = others();
  if (std::find(expected.begin(), expected.end(), hello.rank) == expected.end()) {
    return fmt::format("rank {} ({}, process {}) joined, expected {}", hello.rank, stream.peer(),
                       hello.pid, fmt::join(expected, ", "));
  }
  if (has_arrived(hello.rank)) {
    return fmt::format(
        "rank {} joined twice: process {} of {} and process {} of {} say so (job "
        "'{}')",
        hello.rank, peer(hello.rank).pid, peer(hello.rank).stream.peer(), hello.pid, stream.peer(),
        request_.job);
  }
  return difference(request_.fields, request_.rank, hello.fields, hello.rank);
}

void TcpHost::send_away(Visitor& visitor, TcpKind kind, const std::string& why) {
  visitor.stream.put(kind, std::string_view(why).substr(0, kMostTcpText));
  visitor.stream.flush();
  visitor.stream.finish();
  visitor.stage = Stage::leaving;
  visitor.until = steady_clock::now() + kLinger;
}

// Of a rank that has arrived.
void TcpHost::hear(int rank) {
  Peer& guest = peer(rank);
  guest.stream.flush();
  TcpFrame frame;
  switch (guest.stream.receive(frame, kMostTcpMessage)) {
    case TcpHeard::nothing:
      return;
    case TcpHeard::frame:
      if (frame.kind == TcpKind::regret) {
        fail(fmt::format("{} cannot join: {}", told(rank), printable(frame.payload)));
      }
      if (frame.kind == TcpKind::message && exchanging_ && !guest.message) {
        guest.message = std::move(frame.payload);
        return;
      }
      [[fallthrough]];
    case TcpHeard::garbage:
      fail(fmt::format("{} sent an unexpected message", told(rank)));
    case TcpHeard::altered:
      fail(fmt::format("what {} sent was altered on its way: its hash does not fit the job key",
                       told(rank)));
    case TcpHeard::end:
      break;
  }
  const std::vector<int> awaited = missing();
  fail(fmt::format(
      "{} went away during set-up of job '{}'{}", told(rank), request_.job,
      awaited.empty() ? "" : fmt::format("; rank {} had not arrived", rank_list(awaited))));
}

std::vector<std::string> TcpHost::exchange(const std::string& mine) {
  try {
    exchanging_ = true;
    for (Peer& guest : peers_) guest.message.reset();
    const auto awaited = [this] {
      std::vector<int> ranks;
      for (int r : others()) {
        if (!peer(r).message) ranks.push_back(r);
      }
      return ranks;
    };
    while (!awaited().empty()) {
      if (look(request_.deadline)) continue;
      fail(fmt::format("rank {}: timeout: rank {} did not answer during set-up of {}",
                       request_.rank, rank_list(awaited()), job()));
    }
    std::vector<std::string> messages(peers_.size());
    messages[static_cast<std::size_t>(request_.rank)] = mine;
    for (int r : others()) messages[static_cast<std::size_t>(r)] = std::move(*peer(r).message);
    exchanging_ = false;
    send_all(TcpKind::results,
             std::make_shared<const std::string>(encode_results(request_.members, messages)));
    flush_all();
    return messages;
  } catch (const std::exception& error) {
    refuse_all(error.what());
    throw;
  }
}

void TcpHost::send_all(TcpKind kind, const TcpStream::Text& payload) {
  for (int r : others()) {
    peer(r).stream.put(kind, payload);
    peer(r).stream.flush();
  }
}

// Reads nothing: who has its results may have begun the next exchange.
void TcpHost::flush_all() {
  for (;;) {
    std::vector<int> ranks;
    std::vector<TcpWatch> watches;
    for (int r : others()) {
      if (peer(r).stream.broken()) hear(r);  // its last words, or that it has gone
      if (peer(r).stream.broken()) fail(fmt::format("{} went away during set-up", told(r)));
      if (!peer(r).stream.has_output()) continue;
      ranks.push_back(r);
      watches.push_back({.fd = peer(r).stream.fd(), .for_input = false, .for_output = true});
    }
    if (ranks.empty()) return;
    if (!wait_for(watches, request_.deadline)) {
      fail(fmt::format("rank {}: timeout: rank {} took no message during set-up of {}",
                       request_.rank, rank_list(ranks), job()));
    }
    for (int r : ranks) peer(r).stream.flush();
  }
}

void TcpHost::refuse_all(const std::string& why) {
  const SpareFiles spare;  // there may be none left, which is why
  refusal_ = why;
  for (int r : others()) {
    if (!has_arrived(r)) continue;
    heard_it_.insert(r);
    Visitor& visitor = visitors_.emplace_back(Visitor{.stream = std::move(peer(r).stream)});
    send_away(visitor, TcpKind::refuse, why);
  }
  const Deadline soon = steady_clock::now() + kLinger;
  const auto has_told_all = [this] {
    return listener_ < 0 || std::all_of(others().begin(), others().end(),
                                        [this](int r) { return heard_it_.contains(r); });
  };
  try {
    while ((!visitors_.empty() || !has_told_all()) && look(soon)) continue;
  } catch (const std::exception&) {  // one is enough: the first
  }
  visitors_.clear();
  stop_listening();
}

void TcpHost::refuse_guests(const std::string& why) {
  listener_ = listen_on(place_.port, request_.size + 8, steady_clock::now() + kLinger);
  refuse_all(why);
}

}  // namespace ubep
