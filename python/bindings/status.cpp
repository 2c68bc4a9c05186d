#include "ubep/status.hpp"

#include <nanobind/stl/string.h>

#include <string>

#include "bindings.hpp"
#include "state.hpp"

namespace ubep::python {
namespace {

nb::object errors() { return nb::module_::import_("ubep._errors"); }

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::misuse:
      return "misuse";
    case ErrorCode::setup:
      return "setup";
    case ErrorCode::status:
      break;
  }
  return "status";
}

void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const nb::object made = errors().attr("make")(name_of(error.code()), error.what());
    PyErr_SetObject(made.type().ptr(), made.ptr());
  }
}

nb::dict attributes_of(const Status& status) {
  nb::dict found;
  found["kind"] = name(status.kind);
  found["word"] = name(status.word);
  found["rank"] = status.rank;
  found["peer"] = status.peer;
  found["epoch"] = status.epoch;
  found["expected"] = status.expected;
  found["seen"] = status.seen;
  found["what"] = status.what;
  nb::list missing;
  for (int r = 0; r < 64; ++r) {
    if ((status.missing >> r & 1U) != 0) missing.append(r);
  }
  found["missing"] = missing;
  return found;
}

}  // namespace

void raise_unless_ok(const Status& status, nb::handle handle, nb::handle out) {
  if (status.ok()) return;
  const nb::object made =
      errors().attr("make")(name(status.code), status.message(), attributes_of(status));
  if (handle.is_valid()) made.attr("handle") = handle;
  if (out.is_valid()) made.attr("out") = out;
  PyErr_SetObject(made.type().ptr(), made.ptr());
  throw nb::python_error();
}

void raise_with_handle(nb::python_error error, nb::handle handle) {
  if (handle.is_valid()) {
    nb::setattr(error.value(), "handle", handle);
  }
  throw error;
}

void bind_status(nb::module_& /*module*/) { nb::register_exception_translator(translate); }

}  // namespace ubep::python
