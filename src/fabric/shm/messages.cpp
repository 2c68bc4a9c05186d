#include "fabric/shm/messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "ubep/version.hpp"

namespace ubep {
namespace {

template <std::size_t n>
void copy_text(char (&to)[n], const std::string& text) {
  std::strncpy(to, text.c_str(), n - 1);
}

bool all_take_part(const JoinRequest& request) {
  return request.members.empty() ||
         request.members.size() == static_cast<std::size_t>(request.size);
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
  return job_text(request, "socket @" + socket_name(request));
}

std::string job_text(const JoinRequest& request, const std::string& place) {
  const std::string text =
      fmt::format("job '{}' of {} ranks ({})", request.job, request.size, place);
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

}  // namespace ubep
