#include "state.hpp"

#include <string>

#include "ubep/status.hpp"

namespace ubep::python {

Turn::Turn(PyCommunicator& communicator, const char* call, Kind kind)
    : communicator_(communicator), kind_(kind) {
  const PyCommunicator& c = communicator;
  const bool free = kind == Kind::exclusive ? !c.is_busy()
                    : kind == Kind::wait    ? !c.exclusive && !c.waiting
                                            : !c.exclusive;
  if (!free) {
    throw Error(ErrorCode::misuse,
                std::string(call) + " while another call of this communicator is under way");
  }
  if (kind == Kind::exclusive) communicator.exclusive = true;
  if (kind == Kind::wait) communicator.waiting = true;
  if (kind == Kind::step) ++communicator.steppers;
}

Turn::~Turn() {
  if (kind_ == Kind::exclusive) communicator_.exclusive = false;
  if (kind_ == Kind::wait) communicator_.waiting = false;
  if (kind_ == Kind::step) --communicator_.steppers;
  if (communicator_.dropped.empty() || communicator_.is_busy()) return;
  const std::vector<HandleParts> ended = std::move(communicator_.dropped);
  communicator_.dropped.clear();
}

PyHandle::~PyHandle() {
  if (communicator != nullptr && communicator->is_busy()) {
    communicator->dropped.push_back(std::move(parts));
  }
}

Status wait_until(PyCommunicator& communicator, Handle& handle,
                  std::chrono::steady_clock::time_point until) {
  return wait_in_slices(until, [&](std::chrono::steady_clock::time_point slice) {
    return communicator.native.wait(handle, slice);
  });
}

}  // namespace ubep::python
