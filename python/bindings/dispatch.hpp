// What the calls share: options of a dispatch from keyword arguments, and the views of its rows.
#pragma once

#include <span>

#include "options.hpp"
#include "state.hpp"
#include "ubep/dispatch.hpp"

namespace ubep::python {

std::span<const Field<DispatchOptions>> dispatch_fields();

// Received rows of a handle, for as long as its lease lasts.
struct PyReceived {
  nb::object owner;
  PyHandle* handle = nullptr;

  const Received& get() const { return handle->parts.native.received(); }
};

}  // namespace ubep::python
