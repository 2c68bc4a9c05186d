#include "dispatch.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "bindings.hpp"
#include "ubep/quantization.hpp"

namespace ubep::python {
namespace {

using namespace nb::literals;

#define UBEP_FIELD(field, convert)                                                  \
  {                                                                                 \
    #field, [](DispatchOptions& o, nb::handle v) { o.field = convert(v, #field); }, \
        [](const DispatchOptions& o) { return nb::cast(o.field); }                  \
  }

constexpr Field<DispatchOptions> kFields[] = {
    UBEP_FIELD(layout, enum_argument<Layout>),
    UBEP_FIELD(path, enum_argument<Path>),
    UBEP_FIELD(reduction, enum_argument<Reduction>),
    UBEP_FIELD(weighting, enum_argument<Weighting>),
    UBEP_FIELD(topk1, bool_argument),
    UBEP_FIELD(in_place, bool_argument),
    UBEP_FIELD(contiguous, bool_argument),
    UBEP_FIELD(mapped_view, bool_argument),
    UBEP_FIELD(expert_alignment, int_argument),
    UBEP_FIELD(expert_capacity, int_argument),
    UBEP_FIELD(by_expert, bool_argument),
    UBEP_FIELD(quant, enum_argument<Quant>),
};
#undef UBEP_FIELD

[[noreturn]] void no_tensor(const Received& r) {
  const char* instead = r.src_stride_bytes != 0 ? "blocks or copy_rows()" : "copy_rows()";
  throw Error(ErrorCode::misuse,
              std::string("rows: they do not lie in one tensor: use ") + instead +
                  ", or dispatch with contiguous=True and path 'pull', or an expert layout");
}

// Elements and width of a received row as Python sees it: quantised rows are bytes.
Element element_of(const Received& r) {
  return r.quant == Quant::none ? python::element_of(r.dtype) : Element::u8;
}
std::int64_t width_of(const Received& r) {
  return r.quant == Quant::none ? r.hidden : quantized_row_bytes(r.quant, r.hidden);
}
std::int64_t element_bytes(const Received& r) {
  return r.quant == Quant::none ? static_cast<std::int64_t>(size_of(r.dtype)) : 1;
}

// Rows in the caller's tensor, and rows that are combined in place.
bool may_write(const PyReceived& self, const Received& r) {
  return self.handle->has_rows_in_out(r) ||
         r.base == self.handle->parts.native.expert_output().data;
}

// What a view of the rows keeps alive.
nb::object keeper(const PyReceived& self, const Received& r) {
  if (!self.handle->has_rows_in_out(r)) return self.owner;
  return nb::make_tuple(self.owner, self.handle->parts.out);
}

nb::any rows(const PyReceived& self) {
  const Received& r = self.get();
  if (!r.row_table.empty()) no_tensor(r);
  return export_view({r.base,
                      {r.num_rows, width_of(r)},
                      {r.stride_bytes / element_bytes(r), 1},
                      element_of(r),
                      may_write(self, r)},
                     keeper(self, r), self.handle->torch);
}

nb::any blocks(const PyReceived& self) {
  const Received& r = self.get();
  if (r.src_stride_bytes == 0) no_tensor(r);
  const std::int64_t bytes = element_bytes(r);
  return export_view({r.base,
                      {static_cast<std::int64_t>(r.src_counts.size()),
                       r.src_stride_bytes / r.stride_bytes, width_of(r)},
                      {r.src_stride_bytes / bytes, r.stride_bytes / bytes, 1},
                      element_of(r),
                      false},
                     self.owner, self.handle->torch);
}

nb::any copy_rows(const PyReceived& self, nb::handle out) {
  const Received& r = self.get();
  const DType dtype = r.quant == Quant::none ? r.dtype : DType::u8;
  const nb::any made = out.is_none() ? make_rows(r.num_rows, width_of(r), dtype, self.handle->torch)
                                     : nb::borrow<nb::any>(out);
  const Array array = import_array(made, "out");
  const Rows to = writable_rows_of(array, "out");
  if (to.num_rows != r.num_rows || to.hidden != width_of(r) || to.dtype != dtype) {
    throw Error(ErrorCode::invalid_argument,
                std::string("out is ") + name(to.dtype) + " [" + std::to_string(to.num_rows) +
                    ", " + std::to_string(to.hidden) + "], expected " + name(dtype) + " [" +
                    std::to_string(r.num_rows) + ", " + std::to_string(width_of(r)) + "]");
  }
  if (r.row_table.empty()) {
    refuse_overlap(to, {r.base, r.num_rows, to.hidden, dtype, r.stride_bytes}, "the received rows");
  }
  const nb::gil_scoped_release released;
  const auto bytes = static_cast<std::size_t>(to.row_bytes());
  for (std::int64_t i = 0; i < to.num_rows; ++i) std::memcpy(to.row(i), r.row(i), bytes);
  return made;
}

nb::any payload(const PyReceived& self, const std::string& name) {
  const Received& r = self.get();
  if (!r.row_table.empty()) no_tensor(r);
  const auto found = std::find_if(r.payloads.begin(), r.payloads.end(),
                                  [&](const PayloadPlace& place) { return place.name == name; });
  if (found == r.payloads.end()) {
    throw Error(ErrorCode::invalid_argument, "name is '" + name + "', expected a payload's");
  }
  const std::byte* first = r.base == nullptr ? nullptr : r.base + found->offset;
  return export_view({first, {r.num_rows, found->bytes}, {r.stride_bytes, 1}, Element::u8, false},
                     self.owner, self.handle->torch);
}

nb::any scales(const PyReceived& self, bool column_major) {
  const Received& r = self.get();
  if (r.quant == Quant::none) throw Error(ErrorCode::misuse, "scales: the rows are not quantised");
  const std::int64_t bytes = r.scales.bytes;
  const Element element = bytes == 4 ? Element::fp32 : Element::u8;
  View view{nullptr, {r.num_rows, r.scales.count}, {}, element, true};
  if (column_major) std::swap(view.shape[0], view.shape[1]);
  const nb::any made = export_copy(view, self.handle->torch);
  const Array array = import_array(made, "scales");
  copy_scales(r, 0, r.num_rows,
              column_major ? ScaleMatrix{array.data, bytes, r.num_rows * bytes}
                           : ScaleMatrix{array.data, r.scales.count * bytes, bytes});
  return column_major ? nb::borrow<nb::any>(nb::object(made.attr("T"))) : made;
}

template <class T>
nb::any table(const PyReceived& self, std::span<const T> values) {
  const auto size = static_cast<std::int64_t>(values.size());
  View view{values.data(), {size}, {}, element_type<T>(), true};
  const Received& r = self.get();
  const bool is_matrix = r.layout == Layout::rank_major && !self.handle->topk1;
  if (is_matrix) view.shape = {size / r.topk, r.topk};
  return export_copy(view, self.handle->torch);
}

nb::any addresses(const PyReceived& self) {
  const Received& r = self.get();
  std::vector<std::uint64_t> found(static_cast<std::size_t>(r.num_rows));
  for (std::int64_t i = 0; i < r.num_rows; ++i) {
    found[static_cast<std::size_t>(i)] = reinterpret_cast<std::uintptr_t>(r.row(i));
  }
  return export_copy(std::span<const std::uint64_t>(found), false);
}

nb::any mapped(const PyReceived& self) {
  const Received& r = self.get();
  if (r.mapped == nullptr) {
    throw Error(ErrorCode::misuse, "mapped: dispatch with mapped_view=True, expected path 'read'");
  }
  const auto ranks = static_cast<std::int64_t>(self.handle->communicator->native.size());
  const std::int64_t tokens =
      static_cast<std::int64_t>(r.mapped_idx.size()) / std::max<std::int64_t>(1, ranks * r.topk);
  const std::int64_t bytes = element_bytes(r);
  // Never a tensor of PyTorch, which knows no read-only memory.
  return export_view({r.mapped,
                      {ranks, tokens, width_of(r)},
                      {r.mapped_rank_stride_bytes / bytes, r.stride_bytes / bytes, 1},
                      element_of(r),
                      false},
                     self.owner, false);
}

template <class T>
nb::any mapped_table(const PyReceived& self, std::span<const T> values) {
  const auto ranks = static_cast<std::int64_t>(self.handle->communicator->native.size());
  const std::int64_t topk = self.get().topk;
  const auto tokens = static_cast<std::int64_t>(values.size()) / (ranks * topk);
  return export_copy({values.data(), {ranks, tokens, topk}, {}, element_type<T>(), true},
                     self.handle->torch);
}

#define UBEP_COPY(field)                                      \
  def_prop_ro(#field, [](const PyReceived& self) {            \
    return export_copy(self.get().field, self.handle->torch); \
  })
#define UBEP_VALUE(field) \
  def_prop_ro(#field, [](const PyReceived& self) { return self.get().field; })

void bind_rows(nb::class_<PyReceived>& received) {
  received
      .def_prop_ro(
          "rows", rows,
          "The rows where they lie, without a copy: [num_rows, hidden] of `dtype`, or uint8\n"
          "[num_rows, bytes of values and scales] where they are quantised. Rows are apart\n"
          "from one another. Raises Misuse where they are not one tensor (rank_major,\n"
          "unless contiguous or in_place). Undefined after the lease, but still there.")
      .def_prop_ro(
          "blocks", blocks,
          "rank_major, pulled or pushed: [size, most rows of a source, hidden]; of source q\n"
          "the first src_counts[q] rows are meant.")
      .def("copy_rows", copy_rows, "out"_a.none() = nb::none(),
           nb::sig("def copy_rows(self, out: " UBEP_ARRAY " | None = None) -> typing.Any"),
           "All rows, copied to `out` or a new array, as `rows` describes them.")
      .def_prop_ro("addresses", addresses, "uint64 [num_rows]: where each row lies, for kernels.")
      .def("payload", payload, "name"_a, "uint8 [num_rows, bytes]: what travelled with each row.")
      .def("scales", scales, "column_major"_a = false,
           "Scales of quantised rows, copied: [num_rows, count], float32, or uint8 exponents.")
      .def_prop_ro("mapped", mapped,
                   "mapped_view: all peers' tokens, NumPy [size, max_tokens, hidden], read-only.")
      .def_prop_ro("mapped_idx",
                   [](const PyReceived& self) { return mapped_table(self, self.get().mapped_idx); })
      .def_prop_ro("mapped_weights", [](const PyReceived& self) {
        return mapped_table(self, self.get().mapped_weights);
      });
}

void bind_received(nb::module_& module) {
  nb::class_<PyReceived> received(
      module, "Received",
      "Received rows of one dispatch. Reading any of it raises Misuse once the lease has ended;\n"
      "index arrays are copies and stay. N = num_rows, K = topk.");
  bind_rows(received);
  received.UBEP_VALUE(layout)
      .UBEP_VALUE(dtype)
      .UBEP_VALUE(hidden)
      .UBEP_VALUE(topk)
      .UBEP_VALUE(quant)
      .UBEP_VALUE(row_bytes)
      .UBEP_VALUE(epoch)
      .UBEP_VALUE(num_rows)
      .UBEP_VALUE(overflow)
      .def_prop_ro(
          "sources",
          [](const PyReceived& self) {
            std::vector<int> found;
            for (int q = 0; q < 64; ++q) {
              if ((self.get().sources >> q & 1U) != 0) found.push_back(q);
            }
            return found;
          },
          "The ranks that took part.")
      .def_prop_ro(
          "scale_place",
          [](const PyReceived& self) {
            const ScalePlace& s = self.get().scales;
            return std::make_tuple(s.offset, s.count, s.bytes, s.block);
          },
          "(offset in bytes, count, bytes of one, elements that share one) of a row's scales.")
      .UBEP_COPY(src_counts)
      .UBEP_COPY(expert_rows)
      .UBEP_COPY(expert_counts)
      .UBEP_COPY(expert_offsets)
      .def_prop_ro(
          "topk_idx", [](const PyReceived& self) { return table(self, self.get().topk_idx); },
          "rank_major: int32 [N, K] local expert ids, -1 = not here ([N] for topk1). N is the\n"
          "number of rows of `out` where rows went there.")
      .def_prop_ro(
          "topk_weights",
          [](const PyReceived& self) { return table(self, self.get().topk_weights); },
          "rank_major: float32 [N, K], 0 where topk_idx is -1 ([N] for topk1).");
}

}  // namespace

std::span<const Field<DispatchOptions>> dispatch_fields() { return kFields; }

void bind_dispatch(nb::module_& module) {
  nb::class_<DispatchOptions> options(
      module, "DispatchOptions",
      "Keyword arguments of a dispatch, made once: dispatch(..., options=DispatchOptions(...)).\n"
      "Enumerations are given as members or by name.");
  options.def(
      "__init__",
      [](DispatchOptions* self, const nb::kwargs& given) {
        DispatchOptions made;
        take_fields(dispatch_fields(), made, given, "DispatchOptions");
        new (self) DispatchOptions(made);
      },
      nb::sig("def __init__(self, *, layout: Layout | str = ..., path: Path | str = ..., "
              "reduction: Reduction | str = ..., weighting: Weighting | str = ..., "
              "topk1: bool = False, in_place: bool = False, contiguous: bool = False, "
              "mapped_view: bool = False, expert_alignment: int = 1, expert_capacity: int = 0, "
              "by_expert: bool = False, quant: Quant | str = ...) -> None"));
  options.def("__getattr__", [](const DispatchOptions& self, const char* name) -> nb::object {
    const auto* field = find_field(dispatch_fields(), name);
    if (field == nullptr) throw nb::attribute_error(name);
    return field->get(self);
  });
  bind_received(module);
}

}  // namespace ubep::python
