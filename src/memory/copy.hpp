// Copies of rows with the two store policies, and the fence that non-temporal stores need.
#pragma once

#include <cstddef>

#include "ubep/types.hpp"

namespace ubep {

// Plain stores.
void copy_plain(std::byte* dst, const std::byte* src, std::size_t bytes);

// Non-temporal stores of whole lines. `dst` is 64-byte aligned and has room for `bytes` rounded up
// to whole lines; what lies after `bytes` may be zeroed. Call store_fence() before the flag.
void copy_streaming(std::byte* dst, const std::byte* src, std::size_t bytes);

inline void copy_with(Store store, std::byte* dst, const std::byte* src, std::size_t bytes) {
  store == Store::far ? copy_streaming(dst, src, bytes) : copy_plain(dst, src, bytes);
}

// Orders all earlier stores of this thread, non-temporal ones included, before its later stores.
void store_fence();

}  // namespace ubep
