#include "ubep/stats.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings.hpp"

namespace ubep::python {

void bind_stats(nb::module_& module) {
  nb::class_<MemoryPlan>(module, "MemoryPlan", "Bytes of one rank.")
      .def_ro("shared_bytes", &MemoryPlan::shared_bytes, "Of its segment and inbox, reserved.")
      .def_ro("private_bytes", &MemoryPlan::private_bytes, "Of its private row areas, reserved.")
      .def_ro("expected_resident_bytes", &MemoryPlan::expected_resident_bytes,
              "What a balanced routing touches with every slot full.")
      .def_prop_ro("reserved_bytes", &MemoryPlan::reserved_bytes);
  nb::class_<OperationStats>(module, "OperationStats",
                             "One dispatch of this rank, and its combine.")
      .def_ro("path", &OperationStats::path, "What `automatic` became.")
      .def_ro("store", &OperationStats::store)
      .def_ro("reason", &OperationStats::reason, "Why that path.")
      .def_prop_ro(
          "roles",
          [](const OperationStats& s) {
            return std::make_tuple(s.roles.count, s.roles.send, s.roles.receive);
          },
          "Lanes that count, send and receive; of one lane all 0.")
      .def_ro("dispatch_copied_bytes", &OperationStats::dispatch_copied_bytes)
      .def_ro("combine_copied_bytes", &OperationStats::combine_copied_bytes);
  nb::class_<CommunicatorFacts>(module, "CommunicatorFacts", "What set-up found out.")
      .def_ro("placement", &CommunicatorFacts::placement, "Of this rank and rank 0.")
      .def_ro("flag_one_way_ns", &CommunicatorFacts::flag_one_way_ns, "0 = not measured.")
      .def_ro("probes", &CommunicatorFacts::probes)
      .def_ro("store", &CommunicatorFacts::store, "What `automatic` became.")
      .def_ro("store_reason", &CommunicatorFacts::store_reason, "Why.")
      .def_ro("host_of", &CommunicatorFacts::host_of,
              "Of each rank a number that those of its host have alike; empty on one host.")
      .def_ro("host_names", &CommunicatorFacts::host_names)
      .def_ro("transport", &CommunicatorFacts::transport, "Between hosts.")
      .def_ro("host_bytes", &CommunicatorFacts::host_bytes, "Put to ranks of other hosts so far.");
}

}  // namespace ubep::python
