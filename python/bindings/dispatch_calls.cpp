#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "calls.hpp"
#include "dispatch.hpp"
#include "ubep/status.hpp"

namespace ubep::python {
namespace {

using namespace nb::literals;
using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse_dtype(const Array& array, const char* argument, const char* expected) {
  throw Error(ErrorCode::invalid_argument,
              std::string(argument) + " has dtype " + dtype_name(array) + ", expected " + expected);
}

void check_matrix(const Array& array, const char* argument) {
  if (array.ndim == 2) return;
  throw Error(ErrorCode::invalid_argument, std::string(argument) + " has " +
                                               std::to_string(array.ndim) +
                                               " dimensions, expected 2: [num_tokens, topk]");
}

bool is_dense(const Array& a) {
  return a.stride[1] == a.element_bytes && a.stride[0] == a.shape[1] * a.element_bytes;
}

std::int32_t narrow(std::int64_t expert, std::int64_t at) {
  if (expert >= INT32_MIN && expert <= INT32_MAX) return static_cast<std::int32_t>(expert);
  throw Error(ErrorCode::invalid_argument, "topk_idx element " + std::to_string(at) + " is " +
                                               std::to_string(expert) + ", expected an expert");
}

// As a dense matrix of To: the array's own memory where it is one, else `copy`.
template <class To, class From>
std::span<const To> dense(const Array& a, std::vector<To>& copy) {
  const auto size = static_cast<std::size_t>(a.shape[0] * a.shape[1]);
  if (std::is_same_v<To, From> && is_dense(a)) return {reinterpret_cast<const To*>(a.data), size};
  copy.resize(size);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(size); ++i) {
    From value;
    const std::byte* from = a.data + i / a.shape[1] * a.stride[0] + i % a.shape[1] * a.stride[1];
    std::memcpy(&value, from, sizeof(From));
    if constexpr (std::is_same_v<From, std::int64_t>) {
      copy[static_cast<std::size_t>(i)] = narrow(value, i);
    } else {
      copy[static_cast<std::size_t>(i)] = value;
    }
  }
  return copy;
}

void take_choices(PyCommunicator& c, RoutingCall& call) {
  const Array& idx = call.topk_idx;
  const Array& weights = call.topk_weights;
  check_matrix(idx, "topk_idx");
  check_matrix(weights, "topk_weights");
  if (weights.shape[1] != idx.shape[1]) {
    throw Error(ErrorCode::invalid_argument,
                "topk_weights has " + std::to_string(weights.shape[1]) + " columns, expected " +
                    std::to_string(idx.shape[1]) + " as topk_idx");
  }
  if (idx.element == Element::i32) {
    call.routing.topk_idx = dense<std::int32_t, std::int32_t>(idx, c.topk_idx);
  } else if (idx.element == Element::i64) {
    call.routing.topk_idx = dense<std::int32_t, std::int64_t>(idx, c.topk_idx);
  } else {
    refuse_dtype(idx, "topk_idx", "int32 or int64");
  }
  if (weights.element != Element::fp32) refuse_dtype(weights, "topk_weights", "float32");
  call.routing.topk_weights = dense<float, float>(weights, c.topk_weights);
  call.routing.topk = static_cast<int>(std::min<std::int64_t>(idx.shape[1], INT32_MAX));
}

// One byte a token, side by side: the array's own memory where it is so, else a copy.
void take_active(PyCommunicator& c, RoutingCall& call, nb::handle given, std::int64_t num_tokens) {
  if (given.is_none()) return;
  call.active = import_array(given, "active");
  const Array& a = call.active;
  if (a.element != Element::b8 && a.element != Element::u8) {
    refuse_dtype(a, "active", "bool or uint8");
  }
  if (a.ndim != 1 || a.shape[0] != num_tokens) {
    throw Error(ErrorCode::invalid_argument,
                "active has " + std::to_string(a.ndim) + " dimensions, the first of " +
                    std::to_string(a.ndim > 0 ? a.shape[0] : 0) + ", expected [" +
                    std::to_string(num_tokens) + "] as x has tokens");
  }
  const auto size = static_cast<std::size_t>(num_tokens);
  if (a.stride[0] == 1 || num_tokens <= 1) {
    call.routing.active = {reinterpret_cast<const std::uint8_t*>(a.data), size};
    return;
  }
  c.active.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    c.active[i] = static_cast<std::uint8_t>(a.data[static_cast<std::int64_t>(i) * a.stride[0]]);
  }
  call.routing.active = c.active;
}

// What a dispatch was given, ready for the native call.
struct DispatchCall {
  DispatchOptions options;
  nb::object handle = nb::none();
  PyHandle* h = nullptr;
  Array x;
  ConstRows rows;
  std::vector<std::string> names;
  std::vector<Payload> payloads;
  std::vector<Keep> payload_memory;
  nb::object active = nb::none();
  nb::object out = nb::none();
  Rows out_rows;
  Keep out_memory;

  Input input() const {
    Input made(rows, payloads);
    made.out = out_rows;
    return made;
  }
};

Payload payload_of(Array& array, const std::string& name) {
  const std::string argument = "payload '" + name + "'";
  if (array.ndim < 1) {
    throw Error(ErrorCode::invalid_argument, argument + " has no dimension, expected [num_tokens]");
  }
  std::int64_t bytes = array.element_bytes;
  bool inner_dense = true;
  for (int i = array.ndim - 1; i > 0; --i) {
    if (array.shape[i] > 1 && array.stride[i] != bytes) inner_dense = false;
    bytes *= array.shape[i];
  }
  const bool apart = array.shape[0] <= 1 || array.stride[0] >= bytes;
  if (!inner_dense || !apart) {
    throw Error(ErrorCode::invalid_argument,
                argument + " has strides, expected the bytes of a token side by side");
  }
  return {name, array.data, bytes, array.shape[0] > 1 ? array.stride[0] : 0};
}

void take_payloads(DispatchCall& call, nb::handle given) {
  if (given.is_none()) return;
  const auto items = nb::cast<nb::dict>(given);
  call.names.reserve(items.size());
  for (const auto [key, value] : items) {
    call.names.emplace_back(nb::str(key).c_str());
    Array array = import_array(value, "payload");
    call.payloads.push_back(payload_of(array, call.names.back()));
    if (array.shape[0] != call.rows.num_rows) {
      throw Error(ErrorCode::invalid_argument,
                  "payload '" + call.names.back() + "' has " + std::to_string(array.shape[0]) +
                      " tokens, expected " + std::to_string(call.rows.num_rows) + " as x");
    }
    call.payload_memory.push_back(std::move(array.keep));
  }
}

void take_out(DispatchCall& call) {
  if (call.out.is_none()) return;
  Array array = import_array(call.out, "out");
  call.out_rows = writable_rows_of(array, "out");
  call.out_memory = std::move(array.keep);
}

// Keywords of the call itself are taken out; the rest are options of the dispatch.
DispatchCall take_call(nb::handle x, const nb::kwargs& given, const char* name) {
  DispatchCall call;
  nb::handle payloads = nb::none();
  for (const auto [key, value] : given) {
    const char* keyword = nb::borrow<nb::str>(key).c_str();
    if (std::strcmp(keyword, "options") == 0 && !value.is_none()) {
      call.options = nb::cast<const DispatchOptions&>(value);
    }
  }
  for (const auto [key, value] : given) {
    const char* keyword = nb::borrow<nb::str>(key).c_str();
    if (const auto* field = find_field(dispatch_fields(), keyword)) {
      field->set(call.options, value);
    } else if (std::strcmp(keyword, "handle") == 0) {
      call.handle = nb::borrow(value);
    } else if (std::strcmp(keyword, "payloads") == 0) {
      payloads = value;
    } else if (std::strcmp(keyword, "active") == 0) {
      call.active = nb::borrow(value);
    } else if (std::strcmp(keyword, "out") == 0) {
      call.out = nb::borrow(value);
    } else if (std::strcmp(keyword, "options") != 0) {
      refuse_keyword(name, keyword);
    }
  }
  call.x = import_array(x, "x");
  call.rows = rows_of(call.x, "x");
  take_payloads(call, payloads);
  take_out(call);
  if (call.handle.is_none()) call.handle = nb::cast(new PyHandle, nb::rv_policy::take_ownership);
  return call;
}

RoutingCall take_routing(PyCommunicator& c, nb::handle topk_idx, nb::handle topk_weights,
                         const DispatchCall& call) {
  RoutingCall routing;
  routing.topk_idx = import_array(topk_idx, "topk_idx");
  routing.topk_weights = import_array(topk_weights, "topk_weights");
  take_choices(c, routing);
  take_active(c, routing, call.active, call.rows.num_rows);
  return routing;
}

void take_handle(PyCommunicator& c, DispatchCall& call) {
  call.h = &handle_of(c, call.handle);
  if (call.h->parts.native.holds_lease()) {
    throw Error(ErrorCode::misuse, "the handle holds a lease: combine or release it first");
  }
}

void give_memory(DispatchCall& call) {
  PyHandle& h = *call.h;
  h.parts.x = std::move(call.x.keep);
  h.parts.payloads = std::move(call.payload_memory);
  h.parts.out = call.out.is_none() ? nb::object() : call.out;
  h.parts.out_memory = std::move(call.out_memory);
  h.out_data = call.out_rows.data;
  h.num_tokens = call.rows.num_rows;
  h.torch = call.x.torch;
  h.topk1 = call.options.topk1;
}

// Repeats `begin`, which waits for a slice at most, until the operation is complete.
template <class Begin>
Status complete(PyCommunicator& c, PyHandle& h, Begin begin) {
  const auto until = Clock::now() + c.timeout;
  for (;;) {
    Status status;
    {
      const nb::gil_scoped_release released;
      status = begin();
    }
    if (status.code != Code::timeout) return status;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (h.parts.native.holds_lease()) return wait_until(c, h.parts.native, until);
    if (Clock::now() >= until) return status;
  }
}

nb::object finish(const DispatchCall& call, const Status& status) {
  raise_unless_ok(status, call.handle);
  return call.handle;
}

nb::object dispatch(nb::handle_t<PyCommunicator> self, nb::handle x, nb::handle topk_idx,
                    nb::handle topk_weights, const nb::kwargs& given) {
  auto& c = nb::cast<PyCommunicator&>(self);
  const Turn turn(c, "dispatch");
  DispatchCall call = take_call(x, given, "dispatch");
  const RoutingCall routing = take_routing(c, topk_idx, topk_weights, call);
  take_handle(c, call);
  give_memory(call);
  Handle& native = call.h->parts.native;
  try {
    return finish(call, complete(c, *call.h, [&] {
                    return c.native.dispatch(call.input(), routing.routing, call.options, native);
                  }));
  } catch (nb::python_error& error) {
    raise_with_handle(std::move(error), call.handle);
  }
}

nb::object start_dispatch(nb::handle_t<PyCommunicator> self, nb::handle x, nb::handle topk_idx,
                          nb::handle topk_weights, const nb::kwargs& given) {
  auto& c = nb::cast<PyCommunicator&>(self);
  const Turn turn(c, "start_dispatch");
  DispatchCall call = take_call(x, given, "start_dispatch");
  const RoutingCall routing = take_routing(c, topk_idx, topk_weights, call);
  take_handle(c, call);
  give_memory(call);
  Status status;
  {
    const nb::gil_scoped_release released;
    status =
        c.native.start_dispatch(call.input(), routing.routing, call.options, call.h->parts.native);
  }
  return finish(call, status);
}

struct CachedCall {
  DispatchCall call;
  const Handle* cached = nullptr;
};

CachedCall take_cached(PyCommunicator& c, nb::handle x, nb::handle cached,
                       const nb::kwargs& given) {
  CachedCall found{take_call(x, given, "cached dispatch"), &handle_of(c, cached).parts.native};
  for (const auto [key, value] : given) {
    const char* keyword = nb::borrow<nb::str>(key).c_str();
    if (find_field(dispatch_fields(), keyword) != nullptr || std::strcmp(keyword, "active") == 0) {
      refuse_keyword("cached dispatch", keyword);
    }
  }
  found.call.options.topk1 = nb::cast<const PyHandle&>(cached).topk1;
  take_handle(c, found.call);
  give_memory(found.call);
  return found;
}

nb::object dispatch_cached(nb::handle_t<PyCommunicator> self, nb::handle x, nb::handle cached,
                           const nb::kwargs& given) {
  auto& c = nb::cast<PyCommunicator&>(self);
  const Turn turn(c, "dispatch_cached");
  CachedCall found = take_cached(c, x, cached, given);
  Handle& native = found.call.h->parts.native;
  try {
    return finish(found.call, complete(c, *found.call.h, [&] {
                    return c.native.dispatch(found.call.input(), *found.cached, native);
                  }));
  } catch (nb::python_error& error) {
    raise_with_handle(std::move(error), found.call.handle);
  }
}

nb::object start_dispatch_cached(nb::handle_t<PyCommunicator> self, nb::handle x, nb::handle cached,
                                 const nb::kwargs& given) {
  auto& c = nb::cast<PyCommunicator&>(self);
  const Turn turn(c, "start_dispatch_cached");
  CachedCall found = take_cached(c, x, cached, given);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = c.native.start_dispatch(found.call.input(), *found.cached, found.call.h->parts.native);
  }
  return finish(found.call, status);
}

// Takes the keywords of run_layer out of those of its dispatches.
nb::kwargs split_keywords(const nb::kwargs& given, nb::object& experts, nb::object& out) {
  nb::dict rest;
  for (const auto [key, value] : given) {
    const char* keyword = nb::borrow<nb::str>(key).c_str();
    if (std::strcmp(keyword, "experts") == 0) {
      experts = nb::borrow(value);
    } else if (std::strcmp(keyword, "out") == 0) {
      out = nb::borrow(value);
    } else {
      rest[key] = value;
    }
  }
  if (!PyCallable_Check(experts.ptr())) {
    throw Error(ErrorCode::invalid_argument, "experts is no function, expected experts(handle)");
  }
  return nb::borrow<nb::kwargs>(rest);
}

struct LayerCall {
  DispatchCall call;
  nb::object experts = nb::none();
  nb::object out = nb::none();
  Array out_array;
  Layer layer;
};

LayerCall take_layer(PyCommunicator& c, nb::handle x, const nb::kwargs& given) {
  LayerCall made;
  const nb::kwargs rest = split_keywords(given, made.experts, made.out);
  made.call = take_call(x, rest, "run_layer");
  made.call.h = &handle_of(c, made.call.handle);
  const ConstRows& rows = made.call.rows;
  if (made.out.is_none()) {
    made.out = make_rows(rows.num_rows, rows.hidden, rows.dtype, made.call.x.torch);
  }
  made.out_array = import_array(made.out, "out");
  made.layer.out = writable_rows_of(made.out_array, "out");
  refuse_overlap(made.layer.out, rows, "x");
  return made;
}

nb::object run_layer(nb::handle_t<PyCommunicator> self, nb::handle x, nb::handle topk_idx,
                     nb::handle topk_weights, const nb::kwargs& given) {
  auto& c = nb::cast<PyCommunicator&>(self);
  const Turn turn(c, "run_layer");
  LayerCall made = take_layer(c, x, given);
  DispatchCall& call = made.call;
  PyHandle& h = *call.h;
  const RoutingCall routing = take_routing(c, topk_idx, topk_weights, call);
  made.layer.experts = [&](Handle&) {
    const nb::gil_scoped_acquire gil;
    made.experts(call.handle);
  };
  // A layer that goes on has the same memory; one that is refused leaves the earlier one's.
  HandleParts before;
  std::swap(before.x, h.parts.x);
  std::swap(before.payloads, h.parts.payloads);
  std::swap(before.combine, h.parts.combine);
  give_memory(call);
  h.parts.combine.push_back(std::move(made.out_array.keep));
  const auto until = Clock::now() + c.timeout;
  try {
    for (;;) {
      Status status;
      {
        const nb::gil_scoped_release released;
        status = c.native.run_layer(call.input(), routing.routing, call.options, made.layer,
                                    h.parts.native);
      }
      if (status.code == Code::timeout && Clock::now() < until) {
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        continue;
      }
      drop_ended(h);
      raise_unless_ok(status, call.handle, made.out);
      return made.out;
    }
  } catch (nb::python_error& error) {
    raise_with_handle(std::move(error), call.handle);
  } catch (const Error&) {
    std::swap(before.x, h.parts.x);
    std::swap(before.payloads, h.parts.payloads);
    std::swap(before.combine, h.parts.combine);
    throw;
  }
}

}  // namespace

PyHandle& handle_of(PyCommunicator& communicator, nb::handle object) {
  PyHandle* found = nullptr;
  if (!nb::try_cast(object, found) || found == nullptr) {
    throw Error(
        ErrorCode::invalid_argument,
        std::string("handle is a ") + nb::type_name(object.type()).c_str() + ", expected a Handle");
  }
  // Views of a handle keep its communicator alive through it, so it stays with one.
  if (found->communicator != nullptr && found->communicator.get() != &communicator) {
    throw Error(ErrorCode::misuse, "the handle has no dispatch of this communicator");
  }
  if (found->communicator == nullptr) found->communicator = communicator.shared_from_this();
  return *found;
}

void drop_ended(PyHandle& handle) {
  if (handle.parts.native.holds_lease()) return;
  handle.parts.x = Keep();
  handle.parts.payloads.clear();
  handle.parts.out.reset();
  handle.parts.out_memory = Keep();
  handle.parts.combine.clear();
}

#define UBEP_ARRAYS "x: " UBEP_ARRAY ", topk_idx: " UBEP_ARRAY ", topk_weights: " UBEP_ARRAY ""
#define UBEP_OPTIONS                                                                             \
  "active: " UBEP_ARRAY                                                                          \
  " | None = None, handle: Handle | None = None, "                                               \
  "payloads: dict[str, " UBEP_ARRAY                                                              \
  "] | None = None, "                                                                            \
  "options: DispatchOptions | None = None, layout: Layout | str = ..., path: Path | str = ..., " \
  "reduction: Reduction | str = ..., weighting: Weighting | str = ..., topk1: bool = False, "    \
  "in_place: bool = False, contiguous: bool = False, mapped_view: bool = False, "                \
  "expert_alignment: int = 1, expert_capacity: int = 0, by_expert: bool = False, "               \
  "quant: Quant | str = ..."
#define UBEP_OUT "out: " UBEP_ARRAY " | None = None, "
#define UBEP_CACHED                                 \
  "x: " UBEP_ARRAY ", cached: Handle, *, " UBEP_OUT \
  "handle: Handle | None = None, "                  \
  "payloads: dict[str, " UBEP_ARRAY "] | None = None) -> Handle"

void bind_dispatch_calls(CommunicatorClass& communicator) {
  communicator
      .def("dispatch", dispatch, "x"_a, "topk_idx"_a, "topk_weights"_a, "kwargs"_a,
           nb::sig("def dispatch(self, " UBEP_ARRAYS ", *, " UBEP_OUT UBEP_OPTIONS ") -> Handle"),
           "Sends x [num_tokens, hidden] to the owners of its experts and waits for all rows.\n\n"
           "x: rows of bfloat16, float16, float32, or of bytes (uint8, int8, 8-bit floats); the\n"
           "elements of a row side by side. It must stay unchanged until the lease ends.\n"
           "topk_idx: int32 or int64 [num_tokens, topk], -1 = none. topk_weights: float32.\n"
           "active: bool or uint8 [num_tokens]; a token with 0 takes no part, whatever its "
           "choices.\n"
           "handle: one to use again. payloads: bytes that travel with each token, [num_tokens, "
           "..].\n"
           "out: where received rows are written, [rows, hidden] of x's dtype, apart from x; "
           "expert\n"
           "layouts and contiguous, without quant, payloads and in_place. If more rows come than\n"
           "it has, NoCapacity is raised, and the rows are in the library's memory: nothing is "
           "lost.\n"
           "Raises InvalidArgument, Misuse, SlotBusy, NoCapacity, Timeout, PeerLost, Mismatch,\n"
           "Corrupt; the exception's `handle` goes on where a signal or a timeout interrupted.")
      .def("start_dispatch", start_dispatch, "x"_a, "topk_idx"_a, "topk_weights"_a, "kwargs"_a,
           nb::sig("def start_dispatch(self, " UBEP_ARRAYS ", *, " UBEP_OUT UBEP_OPTIONS
                   ") -> Handle"),
           "The same without waiting. NotReady, SlotBusy and NoCapacity publish nothing: step()\n"
           "and try again.")
      .def(
          "dispatch_cached", dispatch_cached, "x"_a, "cached"_a, "kwargs"_a,
          nb::sig("def dispatch_cached(self, " UBEP_CACHED),
          "Sends x with routing and options of `cached`, whose dispatch completed; on all ranks a\n"
          "handle of the same dispatch. `handle` may be `cached`.")
      .def("start_dispatch_cached", start_dispatch_cached, "x"_a, "cached"_a, "kwargs"_a,
           nb::sig("def start_dispatch_cached(self, " UBEP_CACHED), "The same without waiting.")
      .def(
          "run_layer", run_layer, "x"_a, "topk_idx"_a, "topk_weights"_a, "kwargs"_a,
          nb::sig("def run_layer(self, " UBEP_ARRAYS
                  ", *, experts: collections.abc.Callable[[Handle], object], " UBEP_OUT UBEP_OPTIONS
                  ") -> typing.Any"),
          "A layer of any number of tokens in rounds of max_tokens. experts(handle) is called "
          "once\n"
          "a round; it reads handle.received and writes handle.expert_output. Returns `out`,\n"
          "[num_tokens, hidden]. After Timeout, SlotBusy, a signal or an exception of `experts`\n"
          "the same call with the same x, out and handle goes on where it was.");
}

}  // namespace ubep::python
