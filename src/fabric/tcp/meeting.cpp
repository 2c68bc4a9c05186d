#include "fabric/tcp/meeting.hpp"

#include <fmt/format.h>

#include <exception>
#include <optional>

#include "base/system_limits.hpp"
#include "fabric/shm/messages.hpp"
#include "fabric/tcp/guest.hpp"
#include "fabric/tcp/host.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

TcpPlace with_port(const TcpPlace& place) {
  return {place.address, place.port == 0 ? kDefaultTcpPort : place.port};
}

bool is_host(const JoinRequest& request) { return request.rank == request.members.front(); }

std::string cannot_join(const JoinRequest& request, const std::string& why) {
  return fmt::format("rank {} cannot join: {}", request.rank, why);
}

}  // namespace

struct TcpMeeting::Impl {
  explicit Impl(const JoinRequest& wanted) : request(wanted) {}

  const JoinRequest request;
  std::optional<TcpHost> host;  // one of these, or neither: alone
  std::optional<TcpGuest> guest;
  bool over = false;

  std::vector<std::string> exchange(const std::string& mine) {
    if (host) return host->exchange(mine);
    if (guest) return guest->exchange(mine);
    std::vector<std::string> messages(static_cast<std::size_t>(request.size));
    messages[static_cast<std::size_t>(request.rank)] = mine;
    return messages;
  }
};

TcpMeeting::TcpMeeting(const JoinRequest& request, const TcpPlace& place)
    : impl_(std::make_unique<Impl>(with_members(request))) {
  const JoinRequest& wanted = impl_->request;
  if (wanted.members.size() == 1) return;
  if (is_host(wanted)) {
    impl_->host.emplace(wanted, with_port(place));
    impl_->host->gather();
  } else {
    impl_->guest.emplace(wanted, with_port(place));
    impl_->guest->join();
  }
}

TcpMeeting::~TcpMeeting() = default;

std::vector<std::string> TcpMeeting::exchange(const std::string& mine) {
  if (impl_->over) throw Error(ErrorCode::setup, "this meeting is at its end");
  if (mine.size() > kMostTcpMessage) {  // the caller may still decline
    throw Error(ErrorCode::setup, fmt::format("a message has {} bytes, expected at most {}",
                                              mine.size(), kMostTcpMessage));
  }
  try {
    return impl_->exchange(mine);
  } catch (...) {
    impl_->over = true;
    impl_->guest.reset();  // the host waits for those that it has told to hang up
    throw;
  }
}

void TcpMeeting::decline(const std::string& why) {
  if (impl_->over) return;
  impl_->over = true;
  try {
    if (impl_->host) impl_->host->refuse_all(cannot_join(impl_->request, why));
    if (impl_->guest) impl_->guest->regret(why);
  } catch (const std::exception&) {  // then they see that it has gone, or wait for their deadline
  }
}

void TcpMeeting::decline(const JoinRequest& request, const TcpPlace& place,
                         const std::string& why) {
  const JoinRequest wanted = with_members(request);
  if (wanted.members.size() == 1) return;
  const SpareFiles spare;
  try {
    if (is_host(wanted)) {
      TcpHost(wanted, with_port(place)).refuse_guests(cannot_join(wanted, why));
    } else {
      TcpGuest(wanted, with_port(place)).decline(why);
    }
  } catch (const std::exception&) {  // then they hear of it by their deadline
  }
}

}  // namespace ubep
