// A private area of rows: address space reserved once, resident only as far as it is used, so that
// the data path never allocates. Not inherited by forked children.
#pragma once

#include <cstddef>

namespace ubep {

class PrivateRows {
 public:
  PrivateRows() = default;
  // Rows side by side from the front, or bytes here and there: then no huge pages.
  enum class Use { dense, sparse };
  explicit PrivateRows(std::size_t bytes, Use use = Use::dense);  // throws Error{setup}
  ~PrivateRows();
  PrivateRows(PrivateRows&& other) noexcept;
  PrivateRows& operator=(PrivateRows&& other) noexcept;

  // Address space that a dense area of `bytes` takes: large ones begin on a huge page.
  static std::size_t reserved_bytes(std::size_t bytes);

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  void* mapped_ = nullptr;  // data_ begins in it, on a huge page when it is large
  std::size_t mapped_bytes_ = 0;
  int pid_ = 0;  // a forked child has no mapping here and must not unmap what took its place
};

}  // namespace ubep
