#include <nanobind/stl/string.h>

#include "bindings.hpp"
#include "ubep/version.hpp"

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  // Objects that live until the interpreter ends are no mistake of the user's.
  nb::set_leak_warnings(false);
  module.doc() = "The C++ library, bound header by header.";
  module.attr("__version__") = ubep::kVersion;
  module.def("build_facts", &ubep::build_facts,
             "Versions, commit, compiler, sanitizers and instruction sets: three lines of text.");
  ubep::python::bind_types(module);
  ubep::python::bind_status(module);
  ubep::python::bind_bootstrap(module);
  ubep::python::bind_stats(module);
  ubep::python::bind_dispatch(module);
  ubep::python::bind_handle(module);
  ubep::python::bind_communicator(module);
  ubep::python::bind_quantization(module);
}
