// A rank that cannot take part tells the others why, so that they need not wait for it.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <set>

#include "base/system_limits.hpp"
#include "fabric/shm/messages.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr auto kSeek = std::chrono::seconds(2);  // for the host, by a rank that has only bad news

// The host's: everybody who comes soon is told.
void refuse_guests(const JoinRequest& request, const std::string& why) {
  const Socket listener = Socket::listen(socket_name(request), request.size + 8);
  const Deadline soon = std::min(request.deadline, std::chrono::steady_clock::now() + kLinger);
  std::set<int> told;
  while (told.size() + 1 < request.members.size()) {
    const Socket guest = listener.accept(soon);
    if (!guest.valid()) return;
    if (!guest.same_user()) continue;
    std::array<std::byte, sizeof(Regret)> message = {};
    std::vector<int> fds;
    const long got = guest.receive(message.data(), message.size(), fds, soon);
    for (int fd : fds) ::close(fd);
    Hello hello = {};
    std::memcpy(&hello, message.data(), offsetof(Hello, fields));
    if (got < static_cast<long>(offsetof(Hello, size)) || hello.magic != kMagic) continue;
    if (told.insert(hello.rank).second) {
      (void)send_refusal(guest, why);
    } else {  // it comes again, for the next set-up: a little later
      const timespec pause{0, 5'000'000};
      nanosleep(&pause, nullptr);
    }
  }
}

void tell_host(const JoinRequest& request, const std::string& why) {
  const Deadline soon = std::min(request.deadline, std::chrono::steady_clock::now() + kSeek);
  const Socket socket = Socket::connect(socket_name(request), soon);
  if (socket.valid() && socket.same_user()) (void)send_regret(socket, request, why);
}

}  // namespace

void decline_processes(const JoinRequest& wanted, const std::string& why) {
  const JoinRequest request = with_members(wanted);
  if (request.members.size() == 1) return;
  const SpareFiles spare;
  try {
    if (request.rank == request.members.front()) {
      refuse_guests(request, fmt::format("rank {} cannot join: {}", request.rank, why));
    } else {
      tell_host(request, why);
    }
  } catch (const Error&) {  // then they hear of it by their deadline
  }
}

}  // namespace ubep
