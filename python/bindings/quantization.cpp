#include "ubep/quantization.hpp"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "array.hpp"
#include "bindings.hpp"
#include "options.hpp"

namespace ubep::python {
namespace {

using namespace nb::literals;

nb::any quantize(nb::handle x, nb::handle quant) {
  const auto format = enum_argument<Quant>(quant, "quant");
  const Array array = import_array(x, "x");
  const ConstRows in = rows_of(array, "x");
  nb::any made =
      make_rows(in.num_rows, quantized_row_bytes(format, in.hidden), DType::u8, array.torch);
  const Array to = import_array(made, "out");
  const Rows out = writable_rows_of(to, "out");
  for (std::int64_t i = 0; i < in.num_rows; ++i) {
    quantize_row(format, in.row(i), in.dtype, in.hidden, out.row(i));
  }
  return made;
}

nb::any dequantize(nb::handle rows, nb::handle quant, std::int64_t hidden, nb::handle dtype) {
  const auto format = enum_argument<Quant>(quant, "quant");
  const Array array = import_array(rows, "rows");
  const ConstRows in = rows_of(array, "rows");
  if (in.dtype != DType::u8 || in.hidden < quantized_row_bytes(format, hidden)) {
    throw Error(ErrorCode::invalid_argument,
                std::string("rows are ") + name(in.dtype) + " [" + std::to_string(in.num_rows) +
                    ", " + std::to_string(in.hidden) + "], expected u8 [.., at least " +
                    std::to_string(quantized_row_bytes(format, hidden)) + "]");
  }
  const auto to_dtype = enum_argument<DType>(dtype, "dtype");
  nb::any made = make_rows(in.num_rows, hidden, to_dtype, array.torch);
  const Array to = import_array(made, "out");
  for (std::int64_t i = 0; i < in.num_rows; ++i) {
    dequantize_row(format, in.row(i), to_dtype, hidden, to.data + i * to.stride[0]);
  }
  return made;
}

}  // namespace

void bind_quantization(nb::module_& module) {
  module.def("quantize", quantize, "x"_a, "quant"_a,
             nb::sig("def quantize(x: " UBEP_ARRAY ", quant: Quant | str) -> typing.Any"),
             "x [n, hidden] as a dispatch with `quant` would send it: uint8 [n, bytes of a row].");
  module.def("dequantize", dequantize, "rows"_a, "quant"_a, "hidden"_a, "dtype"_a,
             nb::sig("def dequantize(rows: " UBEP_ARRAY ", quant: Quant | str, hidden: int, "
                     "dtype: DType | str) -> typing.Any"),
             "Rows that quantize() or a dispatch made, [n, hidden] of `dtype` again.");
  module.def(
      "quantized_row_bytes",
      [](nb::handle quant, std::int64_t hidden) {
        return quantized_row_bytes(enum_argument<Quant>(quant, "quant"), hidden);
      },
      "quant"_a, "hidden"_a,
      nb::sig("def quantized_row_bytes(quant: Quant | str, hidden: int) -> int"),
      "Bytes of a quantised row: values, then scales.");
  module.def(
      "scale_place",
      [](nb::handle quant, std::int64_t hidden) {
        const ScalePlace s = scale_place(enum_argument<Quant>(quant, "quant"), hidden);
        return std::make_tuple(s.offset, s.count, s.bytes, s.block);
      },
      "quant"_a, "hidden"_a,
      nb::sig("def scale_place(quant: Quant | str, hidden: int) -> tuple[int, int, int, int]"),
      "(offset in bytes, count, bytes of one, elements that share one) of a row's scales.");
}

}  // namespace ubep::python
