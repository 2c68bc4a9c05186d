// One target a file: LLVMFuzzerTestOneInput() takes bytes that somebody else chose and must come
// back, whatever they are. Built with libFuzzer by scripts/fuzz-inputs; with driver.cpp elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace ubep::test {

// Of the target: inputs that are right, from which others are made.
std::vector<std::string> example_inputs();

// What the bytes say, read from the front; zeros once they are used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <class T>
  T take() {
    T value = {};
    take(&value, sizeof(value));
    return value;
  }
  void take(void* to, std::size_t bytes) {
    const std::size_t there = bytes < size_ ? bytes : size_;
    if (there != 0) std::memcpy(to, data_, there);
    data_ += there;
    size_ -= there;
  }
  // 0..most
  int up_to(int most) { return take<std::uint8_t>() % (most + 1); }
  int between(int low, int high) { return low + up_to(high - low); }
  std::size_t left() const { return size_; }
  std::string rest() {
    std::string text(reinterpret_cast<const char*>(data_), size_);
    size_ = 0;
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// A promise that does not hold is found as a crash is.
inline void promise(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace ubep::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
