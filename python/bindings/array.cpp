#include "array.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "ubep/status.hpp"

namespace ubep::python {
namespace {

constexpr int kCpu = 1;  // of DLPack's device types

using nb::dlpack::dtype_code;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, text);
}

nb::object import_attribute(const char* module, const char* name) {
  return nb::module_::import_(module).attr(name);
}

// Kept for as long as the process lives: modules may be gone before our last array is.
nb::handle ndarray_type() {
  static const nb::handle type = import_attribute("numpy", "ndarray").release();
  return type;
}

nb::handle bf16_type() {
  static const nb::handle type =
      import_attribute("numpy", "dtype")(import_attribute("ml_dtypes", "bfloat16")).release();
  return type;
}

struct ElementFacts {
  dtype_code code;
  std::uint8_t bits;
  const char* numpy;
};

// By Element.
constexpr ElementFacts kElements[] = {
    {dtype_code::Bfloat, 16, "uint16"}, {dtype_code::Float, 16, "float16"},
    {dtype_code::Float, 32, "float32"}, {dtype_code::UInt, 8, "uint8"},
    {dtype_code::Int, 32, "int32"},     {dtype_code::Int, 64, "int64"},
    {dtype_code::UInt, 64, "uint64"},   {dtype_code::Float, 64, "float64"},
    {dtype_code::Bool, 8, "bool"}};

const ElementFacts& facts_of(Element element) {
  return kElements[static_cast<std::size_t>(element)];
}

Element element_of_code(dtype_code code, int bits, int lanes) {
  if (lanes != 1) return Element::other;
  const bool bytes = code == dtype_code::Int || code == dtype_code::UInt ||
                     (code >= dtype_code::Float8_E3M4 && code <= dtype_code::Float8_E8M0FNU);
  if (bytes && bits == 8) return Element::u8;
  for (std::size_t i = 0; i < std::size(kElements); ++i) {
    if (kElements[i].code == code && kElements[i].bits == bits) return static_cast<Element>(i);
  }
  return Element::other;
}

std::string name_of(const nb::dlpack::dtype& dtype) {
  static constexpr const char* kNames[] = {"int",    "uint",    "float", "opaque",
                                           "bfloat", "complex", "bool"};
  const std::string name = dtype.code < std::size(kNames) ? kNames[dtype.code] : "code ";
  return name + std::to_string(dtype.bits);
}

std::string numbers(const std::int64_t* values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

void take_dimensions(Array& array, int ndim, const char* argument) {
  array.ndim = ndim;
  if (ndim <= kMostDimensions) return;
  refuse(std::string(argument) + " has " + std::to_string(ndim) + " dimensions, expected at most " +
         std::to_string(kMostDimensions));
}

// Of NumPy's array interface, version 3.
struct NumpyInterface {
  int two;
  int ndim;
  char kind;
  int element_bytes;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;
  void* data;
};
constexpr int kNumpyAligned = 0x100;
constexpr int kNumpyNative = 0x200;
constexpr int kNumpyWritable = 0x400;

Element element_of_numpy(nb::handle object, char kind, int bytes) {
  if (bytes == 1) return kind == 'b' ? Element::b8 : Element::u8;
  if (kind == 'f') return element_of_code(dtype_code::Float, 8 * bytes, 1);
  if (kind == 'i') return element_of_code(dtype_code::Int, 8 * bytes, 1);
  if (kind == 'u') return element_of_code(dtype_code::UInt, 8 * bytes, 1);
  if (bytes == 2 && object.attr("dtype").is(bf16_type())) return Element::bf16;
  return Element::other;
}

Array import_numpy(nb::handle object, const char* argument) {
  Array array;
  static PyObject* const name = PyUnicode_InternFromString("__array_struct__");
  const nb::object capsule = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!capsule.is_valid()) throw nb::python_error();
  const auto* found =
      static_cast<const NumpyInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (found == nullptr) throw nb::python_error();
  take_dimensions(array, found->ndim, argument);
  array.data = static_cast<std::byte*>(found->data);
  for (int i = 0; i < array.ndim; ++i) {
    array.shape[i] = found->shape[i];
    array.stride[i] = found->strides[i];
  }
  array.element_bytes = found->element_bytes;
  array.writable = (found->flags & kNumpyWritable) != 0;
  if ((found->flags & kNumpyNative) != 0 && (found->flags & kNumpyAligned) != 0) {
    array.element = element_of_numpy(object, found->kind, found->element_bytes);
  }
  if (array.element == Element::other) {
    const nb::object dtype = object.attr("dtype");
    array.dtype = nb::str(nb::handle(dtype)).c_str();
  }
  array.keep = Keep(nb::borrow(object));
  return array;
}

void take_tensor(Array& array, const nb::dlpack::dltensor& tensor, const char* argument) {
  if (tensor.device.device_type != kCpu) {
    refuse(std::string(argument) + " lies on a device of DLPack's type " +
           std::to_string(tensor.device.device_type) + ", expected the CPU");
  }
  take_dimensions(array, tensor.ndim, argument);
  array.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  array.element_bytes = tensor.dtype.bits / 8;
  std::int64_t dense = 1;
  for (int i = array.ndim - 1; i >= 0; --i) {
    array.shape[i] = tensor.shape[i];
    array.stride[i] = (tensor.strides != nullptr ? tensor.strides[i] : dense) * array.element_bytes;
    dense *= tensor.shape[i];
  }
  array.element = element_of_code(static_cast<dtype_code>(tensor.dtype.code), tensor.dtype.bits,
                                  tensor.dtype.lanes);
  if (array.element == Element::other) array.dtype = name_of(tensor.dtype);
}

// The exchange table of a type, or null. One type is remembered: in practice torch.Tensor.
const DlpackExchange* exchange_of(nb::handle type) {
  static nb::handle known;
  static const DlpackExchange* table = nullptr;
  if (type.is(known)) return table;
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (capsule.is_none()) return nullptr;
  const auto* found = static_cast<const DlpackExchange*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (found == nullptr) throw nb::python_error();
  if (found->version.major != 1) return nullptr;
  if (!known.is_valid()) {
    known = nb::borrow(type).release();
    table = found;
  }
  return found;
}

// torch.Tensor if PyTorch was imported by somebody, else none.
nb::object torch_tensor_type() {
  const nb::object torch =
      nb::borrow<nb::dict>(nb::module_::import_("sys").attr("modules")).attr("get")("torch");
  return torch.is_none() ? nb::none() : nb::getattr(torch, "Tensor", nb::none());
}

bool is_torch(nb::handle object) {
  static nb::handle known;
  if (!known.is_valid()) {
    nb::object type = torch_tensor_type();
    if (type.is_none()) return false;
    known = type.release();
  }
  if (object.type().is(known)) return true;
  const int is_instance = PyObject_IsInstance(object.ptr(), known.ptr());
  if (is_instance < 0) throw nb::python_error();
  return is_instance == 1;
}

Array import_by_protocol(nb::handle object, const char* argument, bool torch) {
  Array array;
  const nb::object plain = torch ? object.attr("detach")() : nb::borrow(object);
  nb::ndarray<nb::ro> tensor;
  if (!nb::try_cast(plain, tensor)) {
    refuse(std::string(argument) + " is a " + nb::type_name(object.type()).c_str() +
           ", expected an array: NumPy, a tensor, or an object with DLPack or the buffer protocol");
  }
  nb::ndarray<> writable;
  array.writable = nb::try_cast(plain, writable);
  std::vector<std::int64_t> shape(tensor.ndim());
  std::vector<std::int64_t> strides(tensor.ndim());
  for (std::size_t i = 0; i < tensor.ndim(); ++i) {
    shape[i] = static_cast<std::int64_t>(tensor.shape(i));
    strides[i] = tensor.stride(i);
  }
  take_tensor(array,
              {const_cast<void*>(tensor.data()),
               {tensor.device_type(), tensor.device_id()},
               static_cast<std::int32_t>(tensor.ndim()),
               tensor.dtype(),
               shape.data(),
               strides.data(),
               0},
              argument);
  array.keep = Keep(nb::cast(std::move(tensor)));
  return array;
}

void free_tensor(ManagedTensor* tensor) {
  if (!nb::is_alive()) return;  // the interpreter has ended, and its objects with it
  const nb::gil_scoped_acquire gil;
  nb::handle(static_cast<PyObject*>(tensor->context)).dec_ref();
  delete[] tensor->tensor.shape;
  delete tensor;
}

nb::any to_torch(const View& view, nb::handle owner, const DlpackExchange& exchange) {
  const std::size_t ndim = view.shape.size();
  auto* numbers_of = new std::int64_t[2 * ndim];
  std::copy(view.shape.begin(), view.shape.end(), numbers_of);
  std::copy(view.stride.begin(), view.stride.end(), numbers_of + ndim);
  const ElementFacts& facts = facts_of(view.element);
  auto* managed = new ManagedTensor{{1, 0},
                                    owner.inc_ref().ptr(),
                                    free_tensor,
                                    0,
                                    {const_cast<void*>(view.data),
                                     {kCpu, 0},
                                     static_cast<std::int32_t>(ndim),
                                     {static_cast<std::uint8_t>(facts.code), facts.bits, 1},
                                     numbers_of,
                                     numbers_of + ndim,
                                     0}};
  void* object = nullptr;
  if (exchange.to_object(managed, &object) != 0) {
    free_tensor(managed);
    throw nb::python_error();
  }
  return nb::steal<nb::any>(static_cast<PyObject*>(object));
}

template <class... Arguments>
nb::any cast_view(const View& view, nb::handle owner) {
  std::vector<std::size_t> shape(view.shape.begin(), view.shape.end());
  const bool as_bits = view.element == Element::bf16 &&
                       std::is_same_v<std::tuple_element_t<0, std::tuple<Arguments...>>, nb::numpy>;
  const ElementFacts& facts = facts_of(view.element);
  const nb::dlpack::dtype dtype{static_cast<std::uint8_t>(as_bits ? dtype_code::UInt : facts.code),
                                facts.bits, 1};
  const nb::ndarray<Arguments...> array(const_cast<void*>(view.data), shape.size(), shape.data(),
                                        owner, view.stride.data(), dtype, kCpu, 0);
  nb::object object = nb::cast(array, nb::rv_policy::reference);
  if (as_bits) object = object.attr("view")(bf16_type());
  return nb::steal<nb::any>(object.release());
}

}  // namespace

Element element_of(DType dtype) { return static_cast<Element>(dtype); }
static_assert(static_cast<int>(Element::bf16) == static_cast<int>(DType::bf16) &&
              static_cast<int>(Element::fp16) == static_cast<int>(DType::fp16) &&
              static_cast<int>(Element::fp32) == static_cast<int>(DType::fp32) &&
              static_cast<int>(Element::u8) == static_cast<int>(DType::u8));

Array import_array(nb::handle object, const char* argument) {
  if (object.type().is(ndarray_type())) return import_numpy(object, argument);
  const bool torch = is_torch(object);
  const DlpackExchange* exchange = torch ? exchange_of(object.type()) : nullptr;
  if (exchange == nullptr) {
    Array array = import_by_protocol(object, argument, torch);
    array.torch = torch;
    return array;
  }
  Array array;
  ManagedTensor* tensor = nullptr;
  if (exchange->from_object(object.ptr(), &tensor) != 0) throw nb::python_error();
  array.keep = Keep(tensor);
  array.writable = (tensor->flags & 1U) == 0;
  array.torch = true;
  take_tensor(array, tensor->tensor, argument);
  return array;
}

std::string dtype_name(const Array& array) {
  if (array.element == Element::other) return array.dtype;
  return array.element == Element::bf16 ? "bfloat16" : facts_of(array.element).numpy;
}

ConstRows rows_of(const Array& array, const char* argument) {
  const std::string name = argument;
  if (array.ndim != 2) {
    refuse(name + " has shape " + numbers(array.shape, array.ndim) +
           ", expected 2 dimensions: [rows, hidden]");
  }
  if (array.element > Element::u8) {
    refuse(name + " has dtype " + dtype_name(array) +
           ", expected bfloat16, float16, float32, uint8 or 8-bit floats");
  }
  const std::int64_t row_bytes = array.shape[1] * array.element_bytes;
  const bool side_by_side = array.stride[1] == array.element_bytes || array.shape[1] <= 1;
  const bool apart = array.stride[0] >= row_bytes || array.shape[0] <= 1;
  if (array.shape[0] > 0 && (!side_by_side || !apart)) {
    refuse(name + " has strides " + numbers(array.stride, 2) + " bytes, expected [at least " +
           std::to_string(row_bytes) + ", " + std::to_string(array.element_bytes) + "]");
  }
  return {array.data, array.shape[0], array.shape[1], static_cast<DType>(array.element),
          array.shape[0] > 1 ? array.stride[0] : 0};
}

Rows writable_rows_of(const Array& array, const char* argument) {
  const ConstRows rows = rows_of(array, argument);
  if (!array.writable) refuse(std::string(argument) + " is read-only, expected writable memory");
  return {array.data, rows.num_rows, rows.hidden, rows.dtype, rows.stride_bytes};
}

void refuse_overlap(const Rows& out, const ConstRows& in, const char* name) {
  const auto end_of = [](const ConstRows& rows) {
    return rows.num_rows == 0 ? rows.row(0) : rows.row(rows.num_rows - 1) + rows.row_bytes();
  };
  const ConstRows to(out);
  if (to.num_rows == 0 || in.num_rows == 0 || to.row(0) >= end_of(in) || in.row(0) >= end_of(to)) {
    return;
  }
  refuse(std::string("out overlaps ") + name + ", expected memory of its own");
}

nb::any export_view(const View& given, nb::handle owner, bool torch) {
  View view = given;
  if (view.stride.empty()) {
    view.stride.resize(view.shape.size());
    std::int64_t dense = 1;
    for (std::size_t i = view.shape.size(); i-- > 0; dense *= view.shape[i]) view.stride[i] = dense;
  }
  if (torch) {
    const DlpackExchange* exchange = exchange_of(torch_tensor_type());
    return exchange != nullptr ? to_torch(view, owner, *exchange)
                               : cast_view<nb::pytorch>(view, owner);
  }
  return view.writable ? cast_view<nb::numpy>(view, owner)
                       : cast_view<nb::numpy, nb::ro>(view, owner);
}

nb::any export_copy(View view, bool torch) {
  std::size_t bytes = facts_of(view.element).bits / 8;
  for (const std::int64_t n : view.shape) bytes *= static_cast<std::size_t>(n);
  // Never empty: some consumers take a null pointer for a missing array.
  std::unique_ptr<std::byte[]> memory(new std::byte[bytes > 0 ? bytes : 1]);
  if (view.data != nullptr) std::memcpy(memory.get(), view.data, bytes);
  view.data = memory.get();
  view.writable = true;
  const nb::capsule owner(memory.release(),
                          [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
  return export_view(view, owner, torch);
}

nb::any make_rows(std::int64_t rows, std::int64_t hidden, DType dtype, bool torch) {
  return export_copy({nullptr, {rows, hidden}, {}, element_of(dtype), true}, torch);
}

}  // namespace ubep::python
