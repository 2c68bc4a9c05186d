#include "ubep/bootstrap.hpp"

#include <nanobind/stl/chrono.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace ubep::python {

void bind_bootstrap(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Bootstrap>(module, "Bootstrap",
                        "How the ranks of one communicator find each other.\n\n"
                        "rank: 0..size-1. job: names the rendezvous, the same on all ranks.\n"
                        "timeout: seconds, or a timedelta, in which all ranks must arrive.\n"
                        "members: the ranks that take part, the same on all; empty = all of them.\n"
                        "key: a secret that the ranks share; empty = none.\n"
                        "address: the host of the first member, where ranks of several hosts meet\n"
                        "over TCP; empty = one host. port: where; 0 = 28237.")
      .def(
          "__init__",
          [](Bootstrap* self, int rank, int size, const std::string& job, double timeout,
             std::vector<int> members, std::string key, std::string address, int port) {
            const std::chrono::milliseconds ms(static_cast<std::int64_t>(timeout * 1e3));
            new (self) Bootstrap{.rank = rank,
                                 .size = size,
                                 .job = job,
                                 .timeout = ms,
                                 .key = std::move(key),
                                 .members = std::move(members),
                                 .threads = {},
                                 .launcher = {},
                                 .address = std::move(address),
                                 .port = port};
          },
          "rank"_a, "size"_a, "job"_a, "timeout"_a = 30.0, "members"_a = std::vector<int>(),
          "key"_a = "", "address"_a = "", "port"_a = 0)
      .def_static("from_environment", &Bootstrap::from_environment,
                  "The rank that a launcher's variables tell of; raises SetupError.")
      .def_static("in_environment", &Bootstrap::in_environment,
                  "Whether any of these variables are there.")
      .def_rw("rank", &Bootstrap::rank)
      .def_rw("size", &Bootstrap::size)
      .def_rw("job", &Bootstrap::job)
      .def_rw("members", &Bootstrap::members)
      .def_rw("key", &Bootstrap::key)
      .def_rw("address", &Bootstrap::address)
      .def_rw("port", &Bootstrap::port)
      .def_prop_rw(
          "timeout",
          [](const Bootstrap& self) { return static_cast<double>(self.timeout.count()) / 1e3; },
          [](Bootstrap& self, double seconds) {
            self.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
          },
          "Seconds in which all ranks must arrive.")
      .def_ro("launcher", &Bootstrap::launcher)
      .def("__repr__", [](const Bootstrap& self) {
        return "Bootstrap(rank=" + std::to_string(self.rank) +
               ", size=" + std::to_string(self.size) + ", job='" + self.job + "')";
      });
  nb::class_<ThreadGroup>(module, "ThreadGroup", "Ranks as threads of this process, for tests.")
      .def(nb::init<int>(), "size"_a)
      .def("bootstrap", &ThreadGroup::bootstrap, "rank"_a);
}

}  // namespace ubep::python
