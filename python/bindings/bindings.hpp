// One function for each header of <ubep/...>, called by module.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace ubep::python {

namespace nb = nanobind;

void bind_types(nb::module_& module);
void bind_status(nb::module_& module);
void bind_bootstrap(nb::module_& module);
void bind_stats(nb::module_& module);
void bind_dispatch(nb::module_& module);
void bind_handle(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_quantization(nb::module_& module);

}  // namespace ubep::python
