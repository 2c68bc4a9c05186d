// Keyword arguments as the library's option structs.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstring>
#include <span>
#include <string>

#include "ubep/status.hpp"

namespace ubep::python {

namespace nb = nanobind;

// An array in the signatures that people and type checkers read.
#define UBEP_ARRAY "numpy.typing.ArrayLike"

[[noreturn]] inline void refuse_value(const char* argument, nb::handle value,
                                      const std::string& expected) {
  throw Error(ErrorCode::invalid_argument,
              std::string(argument) + " is " + nb::repr(value).c_str() + ", expected " + expected);
}

// A member of an enumeration, or its name.
template <class T>
T enum_argument(nb::handle value, const char* argument) {
  T found{};
  if (nb::try_cast(value, found, false)) return found;
  const nb::handle type = nb::type<T>();
  const nb::object members = type.attr("__members__");
  if (nb::isinstance<nb::str>(value)) {
    const nb::object member = members.attr("get")(value);
    if (!member.is_none()) return nb::cast<T>(member);
  }
  std::string names;
  for (nb::handle name : nb::iter(members)) {
    names += (names.empty() ? "" : ", ") + std::string(nb::str(name).c_str());
  }
  refuse_value(argument, value, "one of " + names);
}

inline int int_argument(nb::handle value, const char* argument) {
  int found = 0;
  if (!nb::try_cast(value, found)) refuse_value(argument, value, "an integer");
  return found;
}

inline bool bool_argument(nb::handle value, const char* argument) {
  bool found = false;
  if (!nb::try_cast(value, found)) refuse_value(argument, value, "True or False");
  return found;
}

// Milliseconds of what Python gives in seconds; 0 stays the default.
std::chrono::milliseconds seconds_argument(nb::handle value, const char* argument);

// One field of an option struct and how it is set.
template <class Options>
struct Field {
  const char* name;
  void (*set)(Options& options, nb::handle value);
  nb::object (*get)(const Options& options);
};

template <class Options>
const Field<Options>* find_field(std::span<const Field<Options>> fields, const char* name) {
  for (const auto& field : fields) {
    if (std::strcmp(field.name, name) == 0) return &field;
  }
  return nullptr;
}

[[noreturn]] inline void refuse_keyword(const char* call, const char* name) {
  PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%s'", call, name);
  throw nb::python_error();
}

template <class Options>
void take_fields(std::span<const Field<Options>> fields, Options& options, const nb::kwargs& given,
                 const char* call) {
  for (const auto [key, value] : given) {
    const char* name = nb::borrow<nb::str>(key).c_str();
    const auto* field = find_field(fields, name);
    if (field == nullptr) refuse_keyword(call, name);
    field->set(options, value);
  }
}

}  // namespace ubep::python
