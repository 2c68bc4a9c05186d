// Arrays and tensors of Python as memory of the library, and back.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlpack_exchange.hpp"
#include "ubep/types.hpp"

namespace ubep::python {

namespace nb = nanobind;

enum class Element : std::uint8_t { bf16, fp16, fp32, u8, i32, i64, u64, fp64, b8, other };

Element element_of(DType dtype);

// Keeps the memory of an imported array alive, whatever becomes of the array object.
class Keep {
 public:
  Keep() = default;
  explicit Keep(nb::object object) : object_(std::move(object)) {}
  explicit Keep(ManagedTensor* tensor) : tensor_(tensor) {}
  Keep(Keep&& other) noexcept
      : object_(std::move(other.object_)), tensor_(std::exchange(other.tensor_, nullptr)) {}
  Keep& operator=(Keep&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~Keep() {
    if (tensor_ != nullptr && tensor_->deleter != nullptr) tensor_->deleter(tensor_);
  }

 private:
  nb::object object_;
  ManagedTensor* tensor_ = nullptr;
};

inline constexpr int kMostDimensions = 4;

struct Array {
  std::byte* data = nullptr;
  int ndim = 0;
  std::int64_t shape[kMostDimensions] = {};
  std::int64_t stride[kMostDimensions] = {};  // in bytes
  std::int64_t element_bytes = 0;
  Element element = Element::other;
  bool writable = true;
  bool torch = false;
  std::string dtype;  // of Element::other, for messages
  Keep keep;
};

// A NumPy array, a tensor, anything with DLPack or the buffer protocol, on the CPU. Throws
// Error{invalid_argument} that names `argument`.
Array import_array(nb::handle object, const char* argument);

// As messages name it: "float32", "bfloat16".
std::string dtype_name(const Array& array);

// [rows, hidden] of an element type that can be sent; elements of a row lie side by side.
ConstRows rows_of(const Array& array, const char* argument);
// The same, to be written.
Rows writable_rows_of(const Array& array, const char* argument);

// Refuses memory of `out` that `in` has, too.
void refuse_overlap(const Rows& out, const ConstRows& in, const char* name);

// What an array of ours shows.
struct View {
  const void* data = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;  // in elements; empty = dense
  Element element = Element::u8;
  bool writable = false;
};

// An array of NumPy, or of PyTorch, over memory that `owner` keeps.
nb::any export_view(const View& view, nb::handle owner, bool torch);

// A new array with a copy of `bytes` from view.data.
nb::any export_copy(View view, bool torch);

template <class T>
Element element_type() {
  if constexpr (std::is_same_v<T, float>) return Element::fp32;
  if constexpr (std::is_same_v<T, std::int32_t>) return Element::i32;
  if constexpr (std::is_same_v<T, std::uint8_t>) return Element::u8;
  if constexpr (std::is_same_v<T, std::uint64_t>) return Element::u64;
}

template <class T>
nb::any export_copy(std::span<const T> values, bool torch) {
  return export_copy(
      {values.data(), {static_cast<std::int64_t>(values.size())}, {}, element_type<T>(), true},
      torch);
}

// A new array [rows, hidden].
nb::any make_rows(std::int64_t rows, std::int64_t hidden, DType dtype, bool torch);

}  // namespace ubep::python
