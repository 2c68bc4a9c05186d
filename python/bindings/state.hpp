// A communicator and its handles as Python objects hold them. All of it is guarded by the GIL, but
// for the calls into `native`, which run without.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "array.hpp"
#include "lane_clock.hpp"
#include "ubep/communicator.hpp"
#include "ubep/handle.hpp"

namespace ubep::python {

// How long a call waits between two looks for signals.
inline constexpr std::chrono::milliseconds kSlice{50};

struct PyHandle;

// A native handle with the memory that it reads or writes.
struct HandleParts {
  // Before the handle, so that it outlives it.
  Keep x;
  nb::object out;  // received rows, where the caller gave memory for them
  Keep out_memory;
  std::vector<Keep> payloads;
  std::vector<Keep> combine;  // y, out, added
  Handle native;
};

struct PyCommunicator : std::enable_shared_from_this<PyCommunicator> {
  explicit PyCommunicator(Communicator made) : native(std::move(made)) {}

  Communicator native;
  Bootstrap bootstrap;
  CommunicatorOptions options;  // as they were given
  LaneClock clock;
  std::chrono::milliseconds timeout{};
  std::vector<std::int32_t> topk_idx;  // of the call that is made, where they had to be copied
  std::vector<float> topk_weights;
  std::vector<std::uint8_t> active;
  // Handles that were dropped while a thread was in a call.
  std::vector<HandleParts> dropped;
  int steppers = 0;
  bool waiting = false;
  bool exclusive = false;

  bool is_busy() const { return exclusive || waiting || steppers > 0; }
};

// The calls that one thread at a time may make; throws Error{misuse} where another is in one.
class Turn {
 public:
  enum class Kind { exclusive, wait, step };
  Turn(PyCommunicator& communicator, const char* call, Kind kind = Kind::exclusive);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  PyCommunicator& communicator_;
  Kind kind_;
};

struct PyHandle {
  PyHandle() = default;
  ~PyHandle();
  PyHandle(const PyHandle&) = delete;
  PyHandle& operator=(const PyHandle&) = delete;

  std::shared_ptr<PyCommunicator> communicator;  // of its dispatches
  HandleParts parts;
  std::int64_t num_tokens = 0;
  bool torch = false;
  bool topk1 = false;      // of the dispatch's options
  std::int64_t token = 0;  // names the handle where only tensors are passed on
  const void* out_data = nullptr;

  bool has_rows_in_out(const Received& r) const {
    return parts.out.is_valid() && r.base == out_data;
  }
};

// Waits in slices, without the GIL, and throws what a signal's handler raised in between.
Status wait_until(PyCommunicator& communicator, Handle& handle,
                  std::chrono::steady_clock::time_point until);

// Calls `wait(slice)` without the GIL until it is done or `until` has come, and throws what a
// signal's handler raised in between.
template <class Wait>
Status wait_in_slices(std::chrono::steady_clock::time_point until, Wait wait) {
  for (;;) {
    const auto slice = std::min(std::chrono::steady_clock::now() + kSlice, until);
    Status status;
    {
      const nb::gil_scoped_release released;
      status = wait(slice);
    }
    if (status.code != Code::timeout || slice == until) return status;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

// Nothing where the status is ok; else throws the Python exception of its code, with the
// handle and the result as far as they are known.
void raise_unless_ok(const Status& status, nb::handle handle = {}, nb::handle out = {});
// The exception that is set right now gets the handle: what it interrupted can go on.
[[noreturn]] void raise_with_handle(nb::python_error error, nb::handle handle);

}  // namespace ubep::python
