// The part of DLPack's C exchange table (version 1) that is used here: tensors of PyTorch 2.10 and
// later in and out without a Python call.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>

namespace ubep::python {

struct DlpackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct ManagedTensor {
  DlpackVersion version;
  void* context;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;  // bit 0: read-only
  nanobind::dlpack::dltensor tensor;
};

struct DlpackExchange {
  DlpackVersion version;
  DlpackExchange* previous;
  void* make;
  int (*from_object)(void* object, ManagedTensor** out);
  int (*to_object)(ManagedTensor* tensor, void** object);
};

}  // namespace ubep::python
