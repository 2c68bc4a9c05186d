#include <chrono>
#include <string>
#include <vector>

#include "calls.hpp"
#include "options.hpp"
#include "ubep/combine.hpp"
#include "ubep/status.hpp"

namespace ubep::python {
namespace {

using namespace nb::literals;

struct CombineCall {
  CombineArgs args;
  nb::object out = nb::none();
  std::vector<Keep> memory;
};

// Keyword arguments that few calls give.
struct Extras {
  bool unweighted = false;
  bool by_expert = false;
  nb::handle added;
};

ConstRows take_rows(CombineCall& call, nb::handle object, const char* argument) {
  Array array = import_array(object, argument);
  const ConstRows rows = rows_of(array, argument);
  call.memory.push_back(std::move(array.keep));
  return rows;
}

void take_added(CombineCall& call, nb::handle added) {
  std::size_t n = 0;
  for (nb::handle one : nb::iter(added)) {
    if (n == call.args.added.size()) {
      throw Error(ErrorCode::invalid_argument,
                  "added has more than 2 matrices, expected at most 2");
    }
    call.args.added[n++] = take_rows(call, one, "added");
  }
}

void check_overlap(const CombineArgs& args, const PyHandle& h, const Rows& output) {
  const Received& r = h.parts.native.received();
  refuse_overlap(args.out, args.y, "y");
  for (const ConstRows& added : args.added) refuse_overlap(args.out, added, "added");
  refuse_overlap(args.out, output, "expert_output");
  if (r.row_table.empty()) {
    refuse_overlap(args.out, {r.base, r.num_rows, r.row_bytes, DType::u8, r.stride_bytes},
                   "the received rows");
  }
}

CombineCall take_call(PyHandle& h, nb::handle y, nb::handle out, const Extras& extras) {
  CombineCall call;
  const Rows output = h.parts.native.expert_output();
  bool torch = h.torch;
  if (!y.is_none()) {
    Array array = import_array(y, "y");
    call.args.y = rows_of(array, "y");
    torch = array.torch;
    call.memory.push_back(std::move(array.keep));
  }
  const DType dtype = y.is_none() ? output.dtype : call.args.y.dtype;
  call.out =
      out.is_none()
          ? make_rows(h.num_tokens, y.is_none() ? output.hidden : call.args.y.hidden, dtype, torch)
          : nb::borrow(out);
  Array array = import_array(call.out, "out");
  call.args.out = writable_rows_of(array, "out");
  call.memory.push_back(std::move(array.keep));
  call.args.unweighted = extras.unweighted;
  call.args.by_expert = extras.by_expert;
  take_added(call, extras.added);
  check_overlap(call.args, h, output);
  return call;
}

Status begin(PyCommunicator& c, PyHandle& h, CombineCall& call) {
  Status status;
  {
    const nb::gil_scoped_release released;
    status = c.native.start_combine(h.parts.native, call.args);
  }
  if (status.ok()) h.parts.combine = std::move(call.memory);
  return status;
}

void check_lease(const PyHandle& h) {
  if (h.parts.native.holds_lease()) return;
  throw Error(ErrorCode::misuse, "combine needs a handle that holds the lease of a dispatch");
}

// The dispatch, where it is still pending; what it says of lost peers is reported in the end.
Status wait_for_dispatch(PyCommunicator& c, PyHandle& h,
                         std::chrono::steady_clock::time_point until) {
  if (c.native.poll(h.parts.native).code != Code::not_ready) return {};
  return wait_until(c, h.parts.native, until);
}

nb::object combine(PyCommunicator& c, nb::handle handle, nb::handle y, nb::handle out,
                   const Extras& extras) {
  const Turn turn(c, "combine");
  if (extras.by_expert) {
    throw Error(ErrorCode::invalid_argument,
                "by_expert is set, expected only with start_combine(): combine() would wait for "
                "publish()");
  }
  PyHandle& h = handle_of(c, handle);
  check_lease(h);
  nb::object made = nb::none();
  try {
    const auto until = std::chrono::steady_clock::now() + c.timeout;
    const Status dispatched = wait_for_dispatch(c, h, until);
    if (!dispatched.ok() && dispatched.code != Code::peer_lost) {
      raise_unless_ok(dispatched, handle);
    }
    CombineCall call = take_call(h, y, out, extras);
    made = call.out;
    raise_unless_ok(begin(c, h, call), handle);
    const Status combined = wait_until(c, h.parts.native, until);
    drop_ended(h);
    raise_unless_ok(combined.ok() ? dispatched : combined, handle, made);
    return made;
  } catch (nb::python_error& error) {
    if (!made.is_none()) nb::setattr(error.value(), "out", made);
    raise_with_handle(std::move(error), handle);
  }
}

nb::object start_combine(PyCommunicator& c, nb::handle handle, nb::handle y, nb::handle out,
                         const Extras& extras) {
  const Turn turn(c, "start_combine");
  PyHandle& h = handle_of(c, handle);
  check_lease(h);
  const Status pending = c.native.poll(h.parts.native);
  if (pending.code == Code::not_ready) raise_unless_ok(pending, handle);
  CombineCall call = take_call(h, y, out, extras);
  raise_unless_ok(begin(c, h, call), handle);
  return call.out;
}

void publish(PyCommunicator& c, nb::handle handle, int expert) {
  const Turn turn(c, "publish", Turn::Kind::step);
  PyHandle& h = handle_of(c, handle);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = c.native.publish(h.parts.native, expert);
  }
  raise_unless_ok(status, handle);
}

// The limit of parameters is for people; what binds them has one for each keyword.
template <nb::object (*Call)(PyCommunicator&, nb::handle, nb::handle, nb::handle, const Extras&)>
nb::object with_keywords(PyCommunicator& c, nb::handle handle, const nb::args& rest,
                         const nb::kwargs& given) {
  nb::object y = nb::none();
  nb::object out = nb::none();
  Extras extras;
  nb::object added = nb::make_tuple();
  if (rest.size() > 1) {
    PyErr_SetString(PyExc_TypeError, "combine() takes handle and y, the rest by name");
    throw nb::python_error();
  }
  if (rest.size() == 1) y = rest[0];
  for (const auto [key, value] : given) {
    const std::string keyword = nb::borrow<nb::str>(key).c_str();
    if (keyword == "y") {
      y = nb::borrow(value);
    } else if (keyword == "out") {
      out = nb::borrow(value);
    } else if (keyword == "unweighted") {
      extras.unweighted = nb::cast<bool>(value);
    } else if (keyword == "by_expert") {
      extras.by_expert = bool_argument(value, "by_expert");
    } else if (keyword == "added") {
      added = nb::borrow(value);
    } else {
      PyErr_Format(PyExc_TypeError, "combine() got an unexpected keyword argument '%s'",
                   keyword.c_str());
      throw nb::python_error();
    }
  }
  extras.added = added;
  return Call(c, handle, y, out, extras);
}

}  // namespace

#define UBEP_COMBINE                                                     \
  "handle: Handle, y: " UBEP_ARRAY " | None = None, *, out: " UBEP_ARRAY \
  " | None = None, "                                                     \
  "unweighted: bool = False, added: collections.abc.Sequence[" UBEP_ARRAY "] = ()"

void bind_combine_calls(CommunicatorClass& communicator) {
  communicator
      .def("combine", with_keywords<combine>, "handle"_a, "args"_a, "kwargs"_a,
           nb::sig("def combine(self, " UBEP_COMBINE ") -> typing.Any"),
           "Brings expert outputs back, one sum per token, and ends the lease.\n\n"
           "y: [num_rows, hidden] by received row, of float32, bfloat16 or float16 (weighting\n"
           "'owner': [expert rows, hidden]); None = they were written to handle.expert_output.\n"
           "Another hidden and dtype than the dispatch's is allowed, the same on all ranks.\n"
           "out: [num_tokens, hidden] of y's dtype; overlaps no input. unweighted: plain sums.\n"
           "added: up to two matrices like out that are added before the one rounding.\n"
           "Returns out. Raises as dispatch; the exception has `handle`, and `out` where known.")
      .def("start_combine", with_keywords<start_combine>, "handle"_a, "args"_a, "kwargs"_a,
           nb::sig("def start_combine(self, " UBEP_COMBINE
                   ", by_expert: bool = False) -> typing.Any"),
           "The same without waiting; the result is there once wait(handle) returned. by_expert:\n"
           "expert layouts; outputs are not complete yet, publish() announces each local expert's.")
      .def("publish", publish, "handle"_a, "expert"_a,
           nb::sig("def publish(self, handle: Handle, expert: int) -> None"),
           "After start_combine(by_expert=True), once for each local expert in any order: its\n"
           "outputs are complete. Threads may call it, beside step() and wait(). Raises\n"
           "InvalidArgument, Misuse, and Mismatch or Corrupt of a communicator that failed.");
}

}  // namespace ubep::python
