#include "ubep/communicator.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <future>
#include <thread>

#include "bindings.hpp"
#include "calls.hpp"
#include "options.hpp"

namespace ubep::python {
namespace {

using namespace nb::literals;
using std::chrono::milliseconds;

constexpr milliseconds kLongest = std::chrono::hours(24 * 365);

std::vector<std::int32_t> map_argument(nb::handle value, const char* argument) {
  std::vector<std::int32_t> found;
  if (value.is_none()) return found;
  if (!nb::try_cast(value, found)) refuse_value(argument, value, "a sequence of ranks");
  return found;
}

#define UBEP_FIELD(field, convert)                                                              \
  {                                                                                             \
    #field, [](CommunicatorOptions& o, nb::handle v) { o.field = convert(v, #field); }, nullptr \
  }

constexpr Field<CommunicatorOptions> kFields[] = {
    UBEP_FIELD(num_experts, int_argument),
    UBEP_FIELD(expert_rank, map_argument),
    UBEP_FIELD(max_tokens, int_argument),
    UBEP_FIELD(max_hidden, int_argument),
    UBEP_FIELD(max_dtype, enum_argument<DType>),
    UBEP_FIELD(max_payload, int_argument),
    UBEP_FIELD(max_topk, int_argument),
    UBEP_FIELD(slots, int_argument),
    UBEP_FIELD(expert_capacity, int_argument),
    UBEP_FIELD(push, bool_argument),
    UBEP_FIELD(protocol, enum_argument<Protocol>),
    UBEP_FIELD(checksum_rows, int_argument),
    UBEP_FIELD(bsp, bool_argument),
    UBEP_FIELD(stage_pushed, bool_argument),
    UBEP_FIELD(store, enum_argument<Store>),
    UBEP_FIELD(timeout, seconds_argument),
};
#undef UBEP_FIELD

CommunicatorOptions options_of(const nb::kwargs& given, const char* call) {
  CommunicatorOptions options;
  take_fields(std::span<const Field<CommunicatorOptions>>(kFields), options, given, call);
  return options;
}

// As the library reads it, which never sees it here: its own waits are cut into slices.
milliseconds timeout_of(const CommunicatorOptions& options) {
  if (options.timeout.count() > 0) return std::min(options.timeout, kLongest);
  const char* text = std::getenv("UBEP_TIMEOUT_MS");
  if (text == nullptr) return std::chrono::seconds(30);
  const std::string_view all(text);
  std::int64_t value = 0;
  const auto parsed = std::from_chars(all.data(), all.data() + all.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != all.data() + all.size() || value <= 0 ||
      value > kLongest.count()) {
    throw Error(ErrorCode::invalid_argument, "UBEP_TIMEOUT_MS is '" + std::string(all) +
                                                 "', expected milliseconds, 1.." +
                                                 std::to_string(kLongest.count()));
  }
  return milliseconds(value);
}

std::vector<std::weak_ptr<PyCommunicator>>& communicators() {
  static std::vector<std::weak_ptr<PyCommunicator>> all;
  return all;
}

// Joins on a thread of its own, since nothing else can look for signals meanwhile. After one the
// thread is left to its timeout; what it makes then is closed at once.
Communicator join(const Bootstrap& bootstrap, const CommunicatorOptions& options) {
  std::packaged_task<Communicator()> task(
      [bootstrap, options] { return Communicator::create(bootstrap, options); });
  std::future<Communicator> made = task.get_future();
  std::thread thread(std::move(task));
  for (;;) {
    bool ready = false;
    {
      const nb::gil_scoped_release released;
      ready = made.wait_for(kSlice) == std::future_status::ready;
    }
    if (ready) break;
    if (PyErr_CheckSignals() == 0) continue;
    thread.detach();
    throw nb::python_error();
  }
  thread.join();
  return made.get();
}

std::shared_ptr<PyCommunicator> make(const Bootstrap& bootstrap, CommunicatorOptions options,
                                     milliseconds timeout) {
  options.timeout = std::min(timeout, kSlice);
  auto made = std::make_shared<PyCommunicator>(join(bootstrap, options));
  made->bootstrap = bootstrap;
  made->options = options;
  made->timeout = timeout;
  auto& all = communicators();
  std::erase_if(all, [](const auto& known) { return known.expired(); });
  all.push_back(made);
  return made;
}

std::shared_ptr<PyCommunicator> create(const Bootstrap& bootstrap, const nb::kwargs& given) {
  const CommunicatorOptions options = options_of(given, "Communicator.create");
  return make(bootstrap, options, timeout_of(options));
}

void close(PyCommunicator& c) {
  const Turn turn(c, "close");
  c.native.close();
}

// A new one, because views keep the memory of theirs.
std::shared_ptr<PyCommunicator> update_membership(PyCommunicator& c, std::vector<int> members) {
  const Turn turn(c, "update_membership");
  (void)c.native.members();  // refuses a closed one
  if (members.empty()) {
    throw Error(ErrorCode::invalid_argument, "members are empty, expected at least this rank");
  }
  Bootstrap bootstrap = c.bootstrap;
  bootstrap.members = std::move(members);
  auto made = make(bootstrap, c.options, c.timeout);
  c.native.close();
  return made;
}

void mask(PyCommunicator& c, int rank) {
  const Turn turn(c, "mask");
  const nb::gil_scoped_release released;
  c.native.mask(rank);
}

// At the end of the interpreter: peers are told that this rank left, not that it died.
void close_all() {
  for (const auto& known : communicators()) {
    const auto c = known.lock();
    if (c != nullptr && !c->is_busy()) c->native.close();
  }
}

bool poll(PyCommunicator& c, nb::handle handle) {
  PyHandle& h = handle_of(c, handle);
  const Status status = c.native.poll(h.parts.native);
  if (status.code == Code::not_ready) return false;
  raise_unless_ok(status, handle);
  return true;
}

void wait(PyCommunicator& c, nb::handle handle, nb::handle timeout) {
  const Turn turn(c, "wait", Turn::Kind::wait);
  PyHandle& h = handle_of(c, handle);
  const milliseconds limit = timeout.is_none() ? c.timeout : seconds_argument(timeout, "timeout");
  try {
    const Status status = wait_until(c, h.parts.native, std::chrono::steady_clock::now() + limit);
    drop_ended(h);
    raise_unless_ok(status, handle);
  } catch (nb::python_error& error) {
    raise_with_handle(std::move(error), handle);
  }
}

bool poll_expert(PyCommunicator& c, nb::handle handle, int expert) {
  const Turn turn(c, "poll_expert", Turn::Kind::step);
  const Status status = c.native.poll_expert(handle_of(c, handle).parts.native, expert);
  if (status.code == Code::not_ready) return false;
  raise_unless_ok(status, handle);
  return true;
}

void wait_expert(PyCommunicator& c, nb::handle handle, int expert, nb::handle timeout) {
  const Turn turn(c, "wait_expert", Turn::Kind::wait);
  PyHandle& h = handle_of(c, handle);
  const milliseconds limit = timeout.is_none() ? c.timeout : seconds_argument(timeout, "timeout");
  try {
    const auto until = std::chrono::steady_clock::now() + limit;
    raise_unless_ok(wait_in_slices(until,
                                   [&](std::chrono::steady_clock::time_point slice) {
                                     return c.native.wait_expert(h.parts.native, expert, slice);
                                   }),
                    handle);
  } catch (nb::python_error& error) {
    raise_with_handle(std::move(error), handle);
  }
}

std::vector<int> local_experts(const PyCommunicator& c) {
  const CommunicatorOptions& o = c.options;
  const int size = c.native.size();
  const int rank = c.native.rank();
  const int more = o.num_experts % size;
  const int first = rank * (o.num_experts / size) + std::min(rank, more);
  std::vector<int> found;
  for (int e = 0; e < o.num_experts; ++e) {
    const bool mine = o.expert_rank.empty() ? e >= first && e < first + c.native.num_local_experts()
                                            : o.expert_rank[static_cast<std::size_t>(e)] == rank;
    if (mine) found.push_back(e);
  }
  return found;
}

void release(PyCommunicator& c, nb::handle handle) {
  const Turn turn(c, "release");
  PyHandle& h = handle_of(c, handle);
  c.native.release(h.parts.native);
  drop_ended(h);
}

int step(PyCommunicator& c, int lane, int lanes) {
  const Turn turn(c, "step", Turn::Kind::step);
  const nb::gil_scoped_release released;
  return c.native.step(lane, lanes);
}

nb::object input(nb::handle_t<PyCommunicator> self, std::int64_t num_tokens, std::int64_t hidden,
                 nb::handle dtype, bool torch) {
  auto& c = nb::cast<PyCommunicator&>(self);
  const Turn turn(c, "input");
  Rows x;
  raise_unless_ok(c.native.input(num_tokens, hidden, enum_argument<DType>(dtype, "dtype"), x));
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  return export_view(
      {x.data, {x.num_rows, x.hidden}, {x.stride() / bytes, 1}, element_of(x.dtype), true}, self,
      torch);
}

void set_lanes(PyCommunicator& c, int lanes, const std::vector<int>& roles, nb::handle order) {
  const Turn turn(c, "set_lanes");
  if (roles.size() != 3) {
    throw Error(ErrorCode::invalid_argument, "roles has " + std::to_string(roles.size()) +
                                                 " numbers, expected count, send, receive");
  }
  c.native.set_lanes(lanes, {roles[0], roles[1], roles[2]},
                     enum_argument<SendOrder>(order, "order"));
}

void trace(PyCommunicator& c, bool on) {
  const Turn turn(c, "trace");
  c.clock.reset();
  c.native.set_tracer(on ? &c.clock : nullptr);
}

nb::dict lane_times(const PyCommunicator& c, int lane) {
  static constexpr const char* kNames[kActivities] = {
      "count", "send", "receive", "wait_flag", "wait_base", "barrier", "idle"};
  if (lane < 0 || lane >= LaneClock::kLanes) {
    throw Error(ErrorCode::invalid_argument,
                "lane is " + std::to_string(lane) + ", expected 0..63");
  }
  nb::dict found;
  for (std::size_t a = 0; a < kActivities; ++a) found[kNames[a]] = c.clock.times(lane)[a];
  return found;
}

#define UBEP_KEYWORDS                                                                              \
  "num_experts: int, expert_rank: collections.abc.Sequence[int] | None = None, max_tokens: int = " \
  "0, "                                                                                            \
  "max_hidden: int, max_dtype: DType | str = ..., max_payload: int = 0, max_topk: int = 8, "       \
  "slots: int = 2, expert_capacity: int = 0, push: bool = True, "                                  \
  "protocol: Protocol | str = ..., checksum_rows: int = 0, bsp: bool = False, "                    \
  "stage_pushed: bool = False, store: Store | str = ..., timeout: float = 0"

void bind_creation(CommunicatorClass& communicator) {
  communicator
      .def_static(
          "create", create, "bootstrap"_a, "kwargs"_a,
          nb::sig("def create(bootstrap: Bootstrap, *, " UBEP_KEYWORDS ") -> Communicator"),
          "Collective, with the same options on every rank (store and timeout are a rank's\n"
          "own). timeout: seconds of waiting calls; 0 = UBEP_TIMEOUT_MS, else 30 s.\n"
          "Raises InvalidArgument and SetupError within the bootstrap's timeout.")
      .def_static(
          "plan_memory",
          [](int rank, int size, const nb::kwargs& given) {
            return Communicator::plan_memory(options_of(given, "plan_memory"), rank, size);
          },
          "rank"_a, "size"_a, "kwargs"_a,
          nb::sig("def plan_memory(rank: int, size: int, *, " UBEP_KEYWORDS ") -> MemoryPlan"),
          "What create() would reserve on `rank` of `size`.")
      .def("close", close, "Local and idempotent. Views stay readable.")
      .def("update_membership", update_membership, "members"_a,
           "A communicator of these ranks of this one, and of processes that create theirs with "
           "the\n"
           "same Bootstrap.members at about that time (restarted ranks, or others up to size). "
           "This\n"
           "one is closed. Collective. Raises SetupError within the bootstrap's timeout when one\n"
           "does not come; then this one is as it was.")
      .def("mask", mask, "rank"_a,
           "Ends the process of a rank that hangs (SIGKILL): it is then lost for all.\n"
           "Raises Misuse for the own rank and where ranks are threads, SetupError if it may not.")
      .def_prop_ro(
          "members", [](const PyCommunicator& c) { return c.native.members(); },
          "Ranks that took part from its creation on, lost ones included.")
      .def(
          "__enter__", [](nb::handle_t<PyCommunicator> self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Communicator"))
      .def(
          "__exit__", [](PyCommunicator& self, const nb::args&) { close(self); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

#define UBEP_GIVEN(field, text) \
  def_prop_ro(                  \
      #field, [](const PyCommunicator& c) { return c.options.field; }, text)

void bind_facts(CommunicatorClass& communicator) {
  communicator.def_prop_ro("rank", [](const PyCommunicator& c) { return c.native.rank(); })
      .def_prop_ro("size", [](const PyCommunicator& c) { return c.native.size(); })
      .def_prop_ro("num_local_experts",
                   [](const PyCommunicator& c) { return c.native.num_local_experts(); })
      .def_prop_ro("local_experts", local_experts,
                   "Global ids of this rank's experts; the i-th has the local id i.")
      .UBEP_GIVEN(num_experts, "Of all ranks.")
      .UBEP_GIVEN(max_tokens, "Of one rank in one dispatch.")
      .UBEP_GIVEN(max_topk, "Most choices of a token.")
      .UBEP_GIVEN(max_hidden, "With max_dtype the largest row.")
      .UBEP_GIVEN(max_dtype, "With max_hidden the largest row.")
      .UBEP_GIVEN(slots, "Dispatches in flight.")
      .UBEP_GIVEN(expert_capacity, "Most rows of a local expert in expert_padded; 0 = not used.")
      .def_prop_ro("facts", [](const PyCommunicator& c) { return c.native.facts(); })
      .def_prop_ro("memory", [](const PyCommunicator& c) { return c.native.memory(); })
      .def_prop_ro(
          "timeout",
          [](const PyCommunicator& c) { return static_cast<double>(c.timeout.count()) / 1e3; },
          "Seconds that a waiting call takes at most.");
}

void bind_progress(CommunicatorClass& communicator) {
  communicator
      .def("step", step, "lane"_a = 0, "lanes"_a = 1,
           "Moves every started operation on without waiting; returns the work done, 0 = idle.\n"
           "Threads may call it at once, each with a lane of its own, also beside wait().")
      .def("poll", poll, "handle"_a, nb::sig("def poll(self, handle: Handle) -> bool"),
           "Whether the handle's latest operation is complete; raises what it ended with.")
      .def("wait", wait, "handle"_a, "timeout"_a.none() = nb::none(),
           nb::sig("def wait(self, handle: Handle, timeout: float | None = None) -> None"),
           "Until the handle's latest operation is complete; `timeout` in seconds. Timeout and\n"
           "KeyboardInterrupt leave it pending.")
      .def("poll_expert", poll_expert, "handle"_a, "expert"_a,
           nb::sig("def poll_expert(self, handle: Handle, expert: int) -> bool"),
           "After a dispatch with by_expert: whether the rows of the local expert are here, often\n"
           "before the dispatch is complete; received and expert_output may then be read, for the\n"
           "rows of such experts. Threads may call it. Raises what the dispatch ended with,\n"
           "InvalidArgument and Misuse.")
      .def("wait_expert", wait_expert, "handle"_a, "expert"_a, "timeout"_a.none() = nb::none(),
           nb::sig("def wait_expert(self, handle: Handle, expert: int, "
                   "timeout: float | None = None) -> None"),
           "Until poll_expert() is true; as wait().")
      .def("release", release, "handle"_a, nb::sig("def release(self, handle: Handle) -> None"),
           "Ends the lease without a combine.")
      .def("input", input, "num_tokens"_a, "hidden"_a, "dtype"_a, "torch"_a = false,
           nb::sig("def input(self, num_tokens: int, hidden: int, dtype: DType | str, "
                   "torch: bool = False) -> typing.Any"),
           "A buffer for the next dispatch's x, which must be passed to it. Raises SlotBusy, and\n"
           "NotReady until peers have given their slot back: step() and try again.")
      .def("set_lanes", set_lanes, "lanes"_a, "roles"_a = nb::make_tuple(0, 0, 0),
           "order"_a = "scheduled",
           nb::sig(
               "def set_lanes(self, lanes: int, roles: collections.abc.Sequence[int] = (0, 0, 0), "
               "order: SendOrder | str = 'scheduled') -> None"),
           "How many lanes will call step() at once, 1..64. No operation may be pending.")
      .def("trace", trace, "on"_a, "Starts, with all times at 0, or ends lane_times().")
      .def("lane_times", lane_times, "lane"_a = 0,
           nb::sig("def lane_times(self, lane: int = 0) -> dict[str, int]"),
           "Nanoseconds that a lane spent on each activity since trace(True).");
}

}  // namespace

milliseconds seconds_argument(nb::handle value, const char* argument) {
  double seconds = 0;
  if (!nb::try_cast(value, seconds) || !(seconds >= 0)) {
    refuse_value(argument, value, "seconds, >= 0");
  }
  const double most = static_cast<double>(kLongest.count());
  return milliseconds(static_cast<std::int64_t>(std::ceil(std::min(seconds * 1e3, most))));
}

void bind_communicator(nb::module_& module) {
  CommunicatorClass communicator(
      module, "Communicator", nb::is_weak_referenceable(),
      "A fixed set of ranks that exchange tokens. All ranks start operations in the same order;\n"
      "one thread at a time calls it, but for step(), poll(), poll_expert(), publish() and "
      "wait().");
  bind_creation(communicator);
  bind_facts(communicator);
  bind_dispatch_calls(communicator);
  bind_combine_calls(communicator);
  bind_progress(communicator);
  module.def("_close_all", close_all, "What the end of the interpreter does.");
  nb::module_::import_("atexit").attr("register")(module.attr("_close_all"));
}

}  // namespace ubep::python
