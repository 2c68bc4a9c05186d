#include "fabric/shm/thread_rendezvous.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ubep/status.hpp"

namespace ubep::detail {
namespace {

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::setup, text); }

}  // namespace

ThreadRendezvous::ThreadRendezvous(int size)
    : waiting_(static_cast<std::size_t>(size)), fields_(static_cast<std::size_t>(size)) {}

std::string ThreadRendezvous::find_difference() const {
  for (std::size_t r = 1; r < fields_.size(); ++r) {
    std::uint64_t values[kMaxAgreedFields];
    for (std::size_t i = 0; i < kMaxAgreedFields; ++i) values[i] = fields_[r][i].value;
    std::string text = difference(fields_[0], 0, values, static_cast<int>(r));
    if (!text.empty()) return text;
  }
  return {};
}

std::string ThreadRendezvous::missing() const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < waiting_.size(); ++r) {
    if (waiting_[r] == nullptr) ranks.push_back(static_cast<int>(r));
  }
  return fmt::format("{}", fmt::join(ranks, ", "));
}

// Ends this set-up, alike for all who wait, and begins the next.
void ThreadRendezvous::settle(std::string error) {
  outcome_->meeting.segments = std::exchange(waiting_, Segments(waiting_.size()));
  outcome_->meeting.group = random_number();
  outcome_->error = std::move(error);
  outcome_->known = true;
  outcome_ = std::make_shared<Outcome>();
  arrived_ = 0;
  changed_.notify_all();
}

// One rank more knows of the set-up that was declined; once all do, it is forgotten.
void ThreadRendezvous::tell(std::size_t rank) {
  told_[rank] = 1;
  if (std::find(told_.begin(), told_.end(), 0) == told_.end()) declined_.clear();
}

void ThreadRendezvous::decline(const JoinRequest& request, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto rank = static_cast<std::size_t>(request.rank);
  if (rank >= waiting_.size()) return;
  if (!declined_.empty() && told_[rank] == 0) return tell(rank);
  declined_ = fmt::format("rank {} cannot join: {}", rank, why);
  told_.assign(waiting_.size(), 0);
  for (std::size_t r = 0; r < waiting_.size(); ++r) told_[r] = waiting_[r] != nullptr ? 1 : 0;
  settle(declined_);
  tell(rank);
}

Meeting ThreadRendezvous::join(const JoinRequest& request, std::shared_ptr<Segment> own) {
  if (static_cast<std::size_t>(request.size) != waiting_.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("size is {}, expected {} as in the ThreadGroup", request.size,
                            waiting_.size()));
  }
  std::unique_lock lock(mutex_);
  const auto rank = static_cast<std::size_t>(request.rank);
  if (!declined_.empty() && told_[rank] == 0) {
    const std::string why = declined_;
    tell(rank);
    fail(why);
  }
  declined_.clear();  // a rank that knows comes again: all begin anew
  if (waiting_[rank] != nullptr) {
    fail(fmt::format("rank {} joined twice, expected each of 0..{} once", rank,
                     waiting_.size() - 1));
  }
  waiting_[rank] = std::move(own);
  fields_[rank] = request.fields;
  const std::shared_ptr<Outcome> outcome = outcome_;
  if (++arrived_ == request.size) {
    settle(find_difference());
  } else if (!changed_.wait_until(lock, request.deadline, [&] { return outcome->known; })) {
    settle(fmt::format("timeout: rank {} did not arrive in the ThreadGroup of {} ranks", missing(),
                       request.size));
  }
  if (!outcome->error.empty()) fail(outcome->error);
  return outcome->meeting;
}

}  // namespace ubep::detail
