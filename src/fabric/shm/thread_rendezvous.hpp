// Ranks that are threads of one process: peers use the owner's mapping, so that a race detector
// sees one address.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fabric/shm/rendezvous.hpp"

namespace ubep::detail {

class ThreadRendezvous {
 public:
  explicit ThreadRendezvous(int size);
  Meeting join(const JoinRequest& request, std::shared_ptr<Segment> own);
  // A rank cannot take part: those who wait, and those who are yet to come, are told why.
  void decline(const JoinRequest& request, const std::string& why);

 private:
  // Of one set-up, kept by those who wait for it.
  struct Outcome {
    bool known = false;
    Meeting meeting;
    std::string error;
  };
  std::string find_difference() const;
  std::string missing() const;
  void settle(std::string error);
  void tell(std::size_t rank);

  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  Segments waiting_;
  std::vector<AgreedFields> fields_;
  std::string declined_;    // why the set-up that some ranks are yet to come to has failed
  std::vector<char> told_;  // [R] who knows
  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

}  // namespace ubep::detail
