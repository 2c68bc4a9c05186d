// Dispatch, combine and layers as calls of Python.
#pragma once

#include <nanobind/nanobind.h>

#include "state.hpp"

namespace ubep::python {

using CommunicatorClass = nb::class_<PyCommunicator>;

void bind_dispatch_calls(CommunicatorClass& communicator);
void bind_combine_calls(CommunicatorClass& communicator);

// The native handle's object, of this communicator or of none yet.
PyHandle& handle_of(PyCommunicator& communicator, nb::handle object);

// Lets go of memory that an ended lease does not read any more.
void drop_ended(PyHandle& handle);

// An array that must live until an operation ends, with what was seen in it.
struct RoutingCall {
  Array topk_idx;
  Array topk_weights;
  Array active;
  Routing routing;
};

}  // namespace ubep::python
