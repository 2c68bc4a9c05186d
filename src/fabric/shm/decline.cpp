// A rank that cannot take part tells the others why, so that they need not wait for it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <functional>
#include <set>

#include "base/system_limits.hpp"
#include "fabric/shm/messages.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

constexpr auto kSeek = std::chrono::seconds(2);  // for the host, by a rank that has only bad news

template <std::size_t n>
void copy_text(char (&to)[n], const std::string& text) {
  std::strncpy(to, text.c_str(), n - 1);
}

bool all_take_part(const JoinRequest& request) {
  return request.members.empty() ||
         request.members.size() == static_cast<std::size_t>(request.size);
}

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

JoinRequest with_members(const JoinRequest& request) {
  JoinRequest whole = request;
  for (int r = 0; r < whole.size && request.members.empty(); ++r) whole.members.push_back(r);
  return whole;
}

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

std::string socket_name(const JoinRequest& request) {
  std::string key = request.job;
  if (!all_take_part(request)) key += " members " + rank_list(request.members);
  return fmt::format("ubep-{}-{:016x}", geteuid(), std::hash<std::string>{}(key));
}

std::string job_text(const JoinRequest& request) {
  const std::string text = fmt::format("job '{}' of {} ranks (socket @{})", request.job,
                                       request.size, socket_name(request));
  if (!request.names_members) return text;
  return fmt::format("{} with members {}: all members must name the same size and members", text,
                     rank_list(request.members));
}

bool send_refusal(const Socket& socket, const std::string& text) {
  Order order = {};
  order.kind = Order::Kind::refuse;
  copy_text(order.text, text);
  return socket.send(&order, sizeof(order));
}

bool send_regret(const Socket& socket, const JoinRequest& request, const std::string& text) {
  Regret regret = {kMagic, kWireVersion, request.rank, request.size, getpid(), {}};
  copy_text(regret.text, text);
  return socket.send(&regret, sizeof(regret));
}

std::optional<Regret> regret_in(std::span<const std::byte> message) {
  Regret regret = {};
  if (message.size() != sizeof(regret)) return {};
  std::memcpy(&regret, message.data(), sizeof(regret));
  if (regret.magic != kMagic) return {};
  regret.text[sizeof(regret.text) - 1] = 0;
  return regret;
}

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
