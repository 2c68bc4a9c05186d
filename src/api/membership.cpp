// Who takes part: leaving, ending and joining ranks.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/checks.hpp"
#include "api/communicator_impl.hpp"
#include "api/set_up.hpp"

namespace ubep {

std::vector<int> Communicator::Impl::absent() const {
  std::vector<int> ranks;
  const std::vector<int>& present = members();
  for (int r = 0; r < config.size; ++r) {
    if (!std::binary_search(present.begin(), present.end(), r)) ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> Communicator::members() const { return open().members(); }

void Communicator::update_membership(std::vector<int> members) {
  Impl& impl = open();
  const Turns::Turn turn(impl.turns, "update_membership");
  if (members.empty()) {
    throw Error(ErrorCode::invalid_argument, "members are empty, expected at least this rank");
  }
  members = check_members(impl.bootstrap, std::move(members));
  if (impl.engine->failure().ok()) {
    impl.refuse_pending("update_membership");
    if (impl.engine->holds_lease()) {
      throw Error(ErrorCode::misuse,
                  "update_membership while a handle holds a lease: combine or release it first");
    }
  }
  std::swap(impl.bootstrap.members, members);
  try {
    impl.meet(request_of(impl.bootstrap, impl.config));
  } catch (...) {
    std::swap(impl.bootstrap.members, members);
    impl.notice.clear(*impl.fabric);
    throw;
  }
}

void Communicator::mask(int rank) {
  Impl& impl = open();
  if (rank < 0 || rank >= impl.config.size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank is {}, expected 0..{}", rank, impl.config.size - 1));
  }
  if (rank == impl.rank) throw Error(ErrorCode::misuse, "mask: the rank is this one: close()");
  if (impl.bootstrap.threads != nullptr) {
    throw Error(ErrorCode::misuse, "mask: ranks are threads of one process, expected processes");
  }
  if (impl.hosts != nullptr && impl.hosts->is_remote(rank)) {
    throw Error(ErrorCode::misuse, fmt::format("mask: rank {} is on another host, {}", rank,
                                               impl.hosts->host_name(rank)));
  }
  impl.fabric->end_peer(rank);
  impl.engine->look_for_losses();
}

}  // namespace ubep
