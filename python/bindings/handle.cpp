#include "ubep/handle.hpp"

#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "bindings.hpp"
#include "dispatch.hpp"

namespace ubep::python {
namespace {

nb::any expert_output(nb::handle_t<PyHandle> object) {
  PyHandle& self = nb::cast<PyHandle&>(object);
  const Rows rows = self.parts.native.expert_output();
  const auto bytes = static_cast<std::int64_t>(size_of(rows.dtype));
  return export_view({rows.data,
                      {rows.num_rows, rows.hidden},
                      {rows.stride() / bytes, 1},
                      element_of(rows.dtype),
                      true},
                     object, self.torch);
}

nb::any token_of(nb::handle_t<PyHandle> object) {
  static std::int64_t last = 0;
  PyHandle& self = nb::cast<PyHandle&>(object);
  if (self.token == 0) self.token = ++last;
  return export_view({&self.token, {1}, {}, Element::i64, true}, object, true);
}

}  // namespace

void bind_handle(nb::module_& module) {
  nb::class_<PyHandle>(
      module, "Handle", nb::is_weak_referenceable(),
      "What dispatch returns and combine needs. While its lease lasts it holds a slot of the\n"
      "communicator; its views stay readable for as long as they live, with undefined content "
      "once\n"
      "the lease has ended. Dropping the last reference ends the lease.")
      .def(nb::init<>())
      .def_prop_ro(
          "received",
          [](nb::handle_t<PyHandle> object) {
            PyHandle& self = nb::cast<PyHandle&>(object);
            (void)self.parts.native.received();
            return PyReceived{nb::borrow(object), &self};
          },
          "Received rows. Raises Misuse unless the dispatch is complete and the lease is held.")
      .def_prop_ro("expert_output", expert_output,
                   "Where expert outputs may be written, without a copy: [num_rows, hidden]; with\n"
                   "weighting 'owner' [expert rows, hidden]. Raises Misuse as `received`.")
      .def(
          "row_weights",
          [](PyHandle& self) { return export_copy(self.parts.native.row_weights(), self.torch); },
          "Expert layouts: float32 [num_rows], the top-k weight of each row; 0 of padding.")
      .def(
          "row_choices",
          [](PyHandle& self) { return export_copy(self.parts.native.row_choices(), self.torch); },
          "Expert layouts and topk1: int32 [num_rows], which choice k each row is; -1 of padding.")
      .def(
          "valid_tokens",
          [](PyHandle& self) {
            const nb::any bytes = export_copy(self.parts.native.valid_tokens(), self.torch);
            nb::object found = self.torch ? bytes.attr("bool")() : bytes.attr("view")("bool");
            return nb::steal<nb::any>(found.release());
          },
          "After combine: bool [num_tokens], True = every chosen expert contributed.")
      .def_prop_ro("stats", [](const PyHandle& self) { return self.parts.native.stats(); })
      .def_prop_ro("holds_lease",
                   [](const PyHandle& self) { return self.parts.native.holds_lease(); })
      .def_prop_ro(
          "epoch", [](const PyHandle& self) { return self.parts.native.epoch(); },
          "Of the latest dispatch; 0 = never dispatched.")
      .def_prop_ro(
          "communicator", [](const PyHandle& self) { return self.communicator; },
          nb::sig("def communicator(self) -> Communicator | None"),
          "Whose dispatches these are; None = never dispatched.")
      .def_prop_ro(
          "num_tokens", [](const PyHandle& self) { return self.num_tokens; },
          "Tokens that this rank sent in the latest dispatch.");
  module.def("_token", token_of,
             "int64 [1], a tensor of PyTorch that names the handle and keeps it alive.");
}

}  // namespace ubep::python
